"""Classify the relation of the nodes' states of one mailbox: equal, behind, forked or damaged.

The relation follows from contexts, as between nodes (design section 7): a node that has seen all that others have is
ahead of them, and states that have each seen something of their own are branches. Damage is a combination that no two
histories can produce: two different states of one history, numbers that fell on the way, rows without a head, or a
number of rows other than the head's. A node that lacks a mailbox counts as having the empty state of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.comparison import contexts
from spark.comparison.bits import bits_of, has
from spark.comparison.sums import SUMS
from spark.schemas import NODE

RELATIONS = EQUAL, BEHIND, FORKED, DAMAGED = "equal", "behind", "forked", "damaged"

_RISING = ("risen", "uidnext", "highestmodseq")
_NUMBERS = ("uidvalidity", "head_origin", "head_seq", "digest", *_RISING)
_INITIAL = {"uidnext": 1, "highestmodseq": 0, "risen": 0}


class MailboxCounts(NamedTuple):
    """Counts over all mailboxes. `mailboxes`, `trees`: how many have each relation.

    `steps`: number of merges in the longest fold; damaged mailboxes are not folded. `dots`: number of entries in the
    contexts of all nodes' states of the mailboxes that are not equal.
    """

    mailboxes: dict[str, int]
    trees: dict[str, int]
    steps: int
    dots: int

    @property
    def unequal(self) -> int:
        """Number of mailboxes and trees that are not equal."""
        return sum(
            count for found in (self.mailboxes, self.trees) for relation, count in found.items() if relation != EQUAL
        )


def classified(compared: DataFrame, heads: DataFrame, folders: DataFrame, nodes: Sequence[str]) -> DataFrame:
    """Return one row per mailbox. `compared`: see `sums`; the mailboxes that it calls equal are not examined again.

    Columns of all rows: `mailbox`, `is_tree`, `user`, `relation` (if several apply, the worst: damaged, forked, behind,
    equal), `uidvalidity_differs` (as clients see it), `missing_on` (SIDs that lack the mailbox). Examined rows also
    have `states`, of each of `nodes` in their order, each with its `place` there and the bits of the states that it
    `covers`; and `branches`, the places of the states that no other one covers, in the order of a merge: the mailbox's
    master first, then by SID.
    """
    of_folders = F.coalesce("folder_differs", F.lit(False))
    compared = compared.join(_folders_that_differ(folders), "mailbox", "left")
    unequal = compared.where(~F.col("is_equal"))
    there = F.struct(NODE, "user", "context", "master", *_NUMBERS)
    of_unequal = heads.join(unequal.select("mailbox"), "mailbox", "left_semi")
    gathered = of_unequal.groupBy("mailbox").agg(F.collect_list(there).alias("heads"))
    looked_at = (
        unequal.join(gathered, "mailbox", "left")
        .withColumn("states", F.transform(F.array(*map(F.lit, nodes)), _state))
        .withColumn("states", _related(F.col("states"), len(nodes)))
        .withColumn("branches", _branches(F.col("states")))
        .select(
            "mailbox",
            "is_tree",
            F.get("heads", F.lit(0))["user"].alias("user"),
            _relation(F.col("states"), F.col("branches"), len(nodes)).alias("relation"),
            (of_folders | _uidvalidity_differs(F.col("states"))).alias("uidvalidity_differs"),
            _missing_on(F.col("states")).alias("missing_on"),
            "states",
            "branches",
        )
    )
    alike = compared.where("is_equal").select(
        "mailbox",
        "is_tree",
        F.lit(EQUAL).alias("relation"),
        of_folders.alias("uidvalidity_differs"),
        F.array().cast("array<string>").alias("missing_on"),
    )
    return looked_at.unionByName(alike, allowMissingColumns=True)


def _folders_that_differ(folders: DataFrame) -> DataFrame:
    """Return `mailbox` and true for mailboxes whose visible folders differ in UIDVALIDITY between nodes."""
    differ = F.min("uidvalidity") != F.max("uidvalidity")
    seen = folders.where("NOT deleted").groupBy("mailbox").agg(differ.alias("folder_differs"))
    return seen.where("folder_differs")


def summary(classified: DataFrame) -> MailboxCounts:
    """Count the relations in one pass."""
    most = F.max(F.when(F.col("relation") != DAMAGED, F.size("branches"))).alias("most")
    sizes = F.aggregate("states", F.lit(0).cast("long"), lambda found, one: found + F.size(one["context"]))
    dots = F.sum(F.when(F.col("relation") != EQUAL, sizes)).alias("dots")
    found = classified.groupBy("is_tree", "relation").agg(F.count("*").alias("count"), most, dots).collect()
    branches = max((one["most"] or 1 for one in found), default=1)
    counts = {(one["is_tree"], one["relation"]): one["count"] for one in found}
    others, trees = (
        {relation: counts[is_tree, relation] for relation in RELATIONS if (is_tree, relation) in counts}
        for is_tree in (False, True)
    )
    return MailboxCounts(others, trees, max(0, branches - 1), sum(one["dots"] or 0 for one in found))


def _state(sid: Column, place: Column) -> Column:
    head = F.get(F.filter("heads", lambda one: one[NODE] == sid), F.lit(0))
    total = F.get(F.filter("sums", lambda one: one[NODE] == sid), F.lit(0))
    numbers = (F.coalesce(head[name], F.lit(_INITIAL.get(name))).alias(name) for name in _NUMBERS)
    return F.struct(
        head.isNotNull().alias("is_there"),
        F.coalesce(head["master"] == sid, F.lit(False)).alias("leads"),
        F.coalesce(head["context"], contexts.empty()).alias("context"),
        F.coalesce(total["rows"], F.lit(0)).alias("rows"),
        F.struct(*(F.coalesce(total["total"][name], F.lit(0)).alias(name) for name in SUMS)).alias("total"),
        sid.alias(NODE),
        place.alias("place"),
        head["user"].alias("user"),
        *numbers,
    )


def _related(states: Column, count: int) -> Column:
    """Add `covers` to each state: the bits of the states of which it has seen everything, itself among them."""
    places = F.sequence(F.lit(0), F.lit(count - 1))

    def related(one: Column) -> Column:
        covered = F.filter(places, lambda place: contexts.covers(one["context"], F.get(states, place)["context"]))
        return one.withField("covers", bits_of(covered))

    return F.transform(states, related)


def _covers(one: Column, other: Column) -> Column:
    return has(one["covers"], other["place"])


def _branches(states: Column) -> Column:
    """Return the places of states that no other one covers, the master's first; of equal states only the first.

    A node counts as master if it takes itself for it: other nodes may not have heard of a new master. Restates
    `resync.merge._is_covered`.
    """

    def rank(one: Column) -> Column:
        return F.struct((~one["leads"]).alias("late"), one["place"].alias("place"), one["covers"].alias("covers"))

    ranks = F.array_sort(F.transform(states, rank))

    def is_covered(one: Column) -> Column:
        return F.exists(
            ranks, lambda other: (other != one) & _covers(other, one) & ((other < one) | ~_covers(one, other))
        )

    return F.transform(F.filter(ranks, lambda one: ~is_covered(one)), lambda one: one["place"])


def _relation(states: Column, branches: Column, count: int) -> Column:
    all_of_them = F.lit((1 << count) - 1)
    return (
        F.when(_is_damaged(states), F.lit(DAMAGED))
        .when(F.size(branches) > 1, F.lit(FORKED))
        .when(F.exists(states, lambda one: one["covers"] != all_of_them), F.lit(BEHIND))
        .otherwise(F.lit(EQUAL))
    )


def _same_context(one: Column, other: Column) -> Column:
    return _covers(one, other) & _covers(other, one)


def _is_damaged(states: Column) -> Column:
    def contradict(one: Column, other: Column) -> Column:
        return (_one_history(one, other) & ~_one_state(one, other)) | _fell(one, other) | ~_one_mailbox(one, other)

    unsound = F.exists("sums", lambda one: ~one["has_head"] | (one["said"] != one["rows"]))
    return unsound | F.exists(states, lambda one: F.exists(states, lambda other: contradict(one, other)))


def _one_history(one: Column, other: Column) -> Column:
    same_head = (one["head_origin"] == other["head_origin"]) & (one["head_seq"] == other["head_seq"])
    return F.coalesce(same_head, F.lit(False)) | _same_context(one, other)


def _one_state(one: Column, other: Column) -> Column:
    """Return True if both show one state. A node that lacks the mailbox has no digest of it."""
    found = F.coalesce(one["digest"] == other["digest"], F.lit(True)) & _same_context(one, other)
    for name in ("head_origin", "head_seq", "rows", "total", *_RISING):
        found &= one[name].eqNullSafe(other[name])
    return found


def _one_mailbox(one: Column, other: Column) -> Column:
    """Return True if owner and original UIDVALIDITY agree, which no change can alter."""
    both_there = one["is_there"] & other["is_there"]
    return ~both_there | ((one["user"] == other["user"]) & (one["uidvalidity"] == other["uidvalidity"]))


def _fell(one: Column, other: Column) -> Column:
    """Return True if numbers fell: a node that has seen all that another one has cannot have lower ones."""
    lower = F.greatest(*(one[name] < other[name] for name in _RISING))
    return lower & _covers(one, other)


def _uidvalidity_differs(states: Column) -> Column:
    there = F.filter(states, lambda one: one["is_there"])
    shown = F.transform(there, lambda one: F.struct(one["uidvalidity"].alias("own"), one["risen"].alias("risen")))
    return F.size(F.array_distinct(shown)) > 1


def _missing_on(states: Column) -> Column:
    return F.transform(F.filter(states, lambda one: ~one["is_there"]), lambda one: one[NODE])
