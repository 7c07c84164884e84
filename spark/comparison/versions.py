"""Gather the versions of each message that a merge may touch, in mailboxes that are not equal.

A state holds a GUID once, so everything that a merge does to one message, except for new UIDs, follows from its
versions, of which there are no more than nodes. While the mailbox's contexts are at hand, bits record which nodes have
seen the entries that a version names; after that the contexts do not travel with the rows. In a large mailbox most
messages are the same everywhere: hashes find those first, and their rows stay where they are. The moving rows are
spread by mailbox and GUID, so that all tasks share a very large mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.comparison import contexts
from spark.comparison.mailboxes import DAMAGED, EQUAL, MailboxCounts
from spark.schemas import NODE, SCHEMAS, VERSION

AGE = ("seq", "origin", "change")
"""The parts of a placement's name, in the order of age."""
Keep: TypeAlias = Callable[[DataFrame], DataFrame]
"""A function that is called with each DataFrame that is used more than once."""

ROW = tuple(name for name in SCHEMAS["messages"].names if name not in {"mailbox", "guid"})
STATE = tuple(VERSION.names)
"""Columns of a version's row. `placements`: all that the message stands for, by age, each with its bits `seen`.

Bit n of `seen` and `claim_seen` is set if the n-th state has seen the entry: the placement's, the claim.
"""
MAILBOX_BYTES, DOT_BYTES = 512, 64
"""Approximate bytes that each executor holds of a mailbox, and of each entry (origin, seq) of its nodes' contexts."""
PLANS_BYTES_MAX = 128 << 20
"""Limit of the bytes that each executor holds of all differing mailboxes; below it, rows meet them without moving."""
IDS_MAX = 4_000_000
"""Limit of the mailbox ids that each executor holds, some 400 MB; below it, rows of equal mailboxes are not moved."""


def gathered(
    mailboxes: DataFrame, messages: DataFrame, nodes: Sequence[str], relations: MailboxCounts, keep: Keep
) -> DataFrame:
    """Return one row per message: `mailbox`, `guid`, `versions`, `plan`. `mailboxes`, `relations`: see `mailboxes`.

    Messages that are the same everywhere, and stay so, are left out; `keep` is called with the others. `versions`: for
    each node that shows the message, the node's `place` in `nodes`, and the `row` with the columns of STATE. `plan`:
    the facts about the mailbox that a merge needs, see `_plan`.
    """
    rows = _with_plans(mailboxes, messages, nodes, relations)
    touched = keep(_touched(rows, len(nodes)))
    return (
        rows.join(touched, ["mailbox", "guid"], "left_semi")
        .select("mailbox", "guid", _version(nodes).alias("version"), "plan")
        .repartition("mailbox", "guid")  # otherwise a whole mailbox would stay where it met its plan
        .groupBy("mailbox", "guid")
        .agg(F.array_sort(F.collect_list("version")).alias("versions"), F.first("plan").alias("plan"))
    )


def _with_plans(mailboxes: DataFrame, messages: DataFrame, nodes: Sequence[str], relations: MailboxCounts) -> DataFrame:
    """Return the rows of mailboxes that are not equal, with the facts from their contexts."""
    contexts_seen = F.transform("states", lambda one: one["context"]).alias("contexts")
    differing = mailboxes.where(F.col("relation") != EQUAL).select("mailbox", contexts_seen, _plan().alias("plan"))
    if relations.unequal * MAILBOX_BYTES + relations.dots * DOT_BYTES <= PLANS_BYTES_MAX:
        differing = F.broadcast(differing)
    elif relations.unequal <= IDS_MAX:
        messages = messages.join(F.broadcast(differing.select("mailbox")), "mailbox", "left_semi")

    def placed(one: Column) -> Column:
        seen = _seen_by(one["origin"], one["seq"], len(nodes)).alias("seen")
        return F.struct(one["seq"].alias("seq"), one["origin"].alias("origin"), one["change"].alias("change"), seen)

    own = F.struct("origin", "seq", "change")
    seen = {
        "placements": F.array_sort(F.transform(F.concat(F.array(own), "also"), placed)),
        "claim_seen": _seen_by(F.col("claim_origin"), F.col("claim_seq"), len(nodes)),
    }
    return messages.join(differing, "mailbox").withColumns(seen).drop("contexts")


def _touched(rows: DataFrame, count: int) -> DataFrame:
    """Return `mailbox` and `guid` of messages that are not the same at all `count` nodes.

    A merge leaves the others alone.
    """
    return (
        rows.select("mailbox", "guid", F.xxhash64(*ROW).alias("hash"))
        .repartition("mailbox", "guid")
        .groupBy("mailbox", "guid")
        .agg(
            F.count("*").alias("rows"),
            F.min("hash").alias("least"),
            F.max("hash").alias("most"),
        )
        .where((F.col("rows") != count) | (F.col("least") != F.col("most")))
        .select("mailbox", "guid")
    )


def share_placement(one: Column, other: Column) -> Column:
    """Return True if two rows of one GUID stand for a common placement. Restates `resync.row.shares_placement`."""
    return F.arrays_overlap(names(one["placements"]), names(other["placements"]))


def names(placements: Column) -> Column:
    """Return placements without the bits."""
    return F.transform(placements, name)


def name(placement: Column) -> Column:
    """Return a placement without the bits."""
    return F.struct(*(placement[part].alias(part) for part in AGE))


def _version(nodes: Sequence[str]) -> Column:
    place = F.array_position(F.array(*map(F.lit, nodes)), F.col(NODE)) - 1
    return F.struct(place.cast("int").alias("place"), F.struct(*STATE).alias("row"))


def _seen_by(origin: Column, seq: Column, count: int) -> Column:
    found = F.lit(0).cast("long")
    for place in range(count):
        context = F.get("contexts", F.lit(place))
        found += F.when(contexts.has_seen(context, origin, seq), F.lit(1 << place)).otherwise(F.lit(0))
    return found


def _plan() -> Column:
    """Return place, UIDNEXT and HIGHESTMODSEQ of the branches, in merge order; a damaged mailbox has no branches."""
    places = F.filter("branches", lambda _: F.col("relation") != DAMAGED)
    branches = F.transform(places, lambda place: F.get("states", place))
    return F.struct(
        places.alias("places"),
        F.transform(branches, lambda one: one["uidnext"]).alias("uidnexts"),
        F.transform(branches, lambda one: one["highestmodseq"]).alias("modseqs"),
    )
