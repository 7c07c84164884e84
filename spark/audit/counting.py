"""Count an audit's findings: aggregates of a few rows each, from the comparison and the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from resync.inventory import InventoryManifest
from spark.audit import plans
from spark.audit.plans import MASTER
from spark.comparison import projections
from spark.comparison.bits import has
from spark.comparison.mailboxes import DAMAGED, EQUAL
from spark.comparison.mailboxes import MailboxCounts as Relations
from spark.reading.inventories import Inventories
from spark.report.summary import IndexSummary, NodeSummary, PairSummary, Summary, UserSummary
from spark.schemas import NODE

WORST = 20
"""Users that are listed by name."""
KINDS = ("missing", "expunged", "uid_conflict", "flags_differ", "damage", "only_modseq")


def summary(
    read: Inventories, related: DataFrame, relations: Relations, tables: plans.Tables, index: DataFrame
) -> Summary:
    """Return the summary of an audit.

    Of the table of messages only its kinds are needed. `index` is the result of `projections.counted`.
    """
    mailboxes, messages = tables
    unequal = related.where(F.col("relation") != EQUAL)
    kinds = _kinds(messages)
    flags = related.agg(
        F.count_if("uidvalidity_differs").alias("uidvalidity_differs"),
        F.count_if((F.size("missing_on") > 0) & ~F.col("is_tree")).alias("only_on_some"),
    ).first()
    assert flags is not None
    to_repair = mailboxes.where(F.col("relation") != DAMAGED).groupBy(MASTER).count().collect()
    return Summary(
        cluster=next(iter(read.manifests.values())).cluster,
        nodes=_nodes(read, unequal, messages, index),
        pairs=_pairs(unequal, read.nodes),
        mailboxes=sum(relations.mailboxes.values()),
        relations=relations.mailboxes,
        trees=relations.trees,
        uidvalidity_differs=flags["uidvalidity_differs"],
        only_on_some=flags["only_on_some"],
        differing=kinds.pop("all"),
        kinds=kinds,
        worst=_worst(mailboxes),
        plan={one[MASTER]: one["count"] for one in sorted(to_repair)},
    )


def indexes(read: Inventories) -> list[IndexSummary]:
    """Return the summary of each node's index."""
    messages = read.tables["messages"]
    wrong = projections.counted(projections.damaged(messages, read.tables["guids"])).collect()
    miscounted = {one[NODE]: one["count"] for one in projections.miscounted(read.tables["heads"], messages).collect()}
    found = []
    for node, manifest in read.manifests.items():
        index = {one["what"]: one["count"] for one in wrong if one[NODE] == node}
        counted = {"by_guid": sum(index.values()), "chain": miscounted.get(node, 0)}
        found.append(
            IndexSummary(
                node=node,
                mailboxes=manifest.rows["heads"],
                rows=manifest.rows["messages"] + manifest.rows["guids"],
                damage={kind: count for kind, count in counted.items() if count},
                index=index,
                unreadable=dict(manifest.unreadable),
            )
        )
    return found


def _nodes(read: Inventories, unequal: DataFrame, messages: DataFrame, index: DataFrame) -> tuple[NodeSummary, ...]:
    heads = read.tables["heads"].where("uidvalidity > 0").groupBy(NODE).count()
    mailboxes = {one[NODE]: one["count"] for one in heads.collect()}
    behind = _by_node(unequal.where("NOT is_tree").select(F.explode(_behind()).alias(NODE)))
    missing, expunged = (
        _by_node(messages.select(F.explode(column).alias(NODE))) for column in ("missing_on", "expunged_on")
    )
    wrong = index.collect()
    return tuple(
        NodeSummary(
            node=node,
            taken_ms=manifest.taken_ms,
            mailboxes=mailboxes.get(node, 0),
            messages=manifest.rows["messages"],
            lag_entries=_lag(manifest, read.manifests.values()),
            behind=behind.get(node, 0),
            missing=missing.get(node, 0),
            expunged=expunged.get(node, 0),
            unreadable=sum(manifest.unreadable.values()),
            index={one["what"]: one["count"] for one in wrong if one[NODE] == node},
        )
        for node, manifest in read.manifests.items()
    )


def _by_node(named: DataFrame) -> dict[str, int]:
    return {one[NODE]: one["count"] for one in named.groupBy(NODE).count().collect()}


def _lag(manifest: InventoryManifest, manifests: Iterable[InventoryManifest]) -> int:
    """Return the number of entries that this node lacks of all that any node has."""
    newest: dict[str, int] = {}
    for other in manifests:
        for origin, seq in other.context.items():
            newest[origin] = max(newest.get(origin, 0), seq)
    return sum(seq - min(seq, manifest.context.get(origin, 0)) for origin, seq in newest.items())


def _behind() -> Column:
    """Return the nodes for which another node has seen all that they have, and more."""

    def is_behind(one: Column) -> Column:
        return F.exists(
            "states",
            lambda other: has(other["covers"], one["place"]) & ~has(one["covers"], other["place"]),
        )

    return F.transform(F.filter("states", is_behind), lambda one: one[NODE])


def _pairs(unequal: DataFrame, nodes: Sequence[str]) -> tuple[PairSummary, ...]:
    """Return for each two nodes the number of mailboxes whose digests or rows differ, or that one of them lacks."""
    shown = ("digest", "rows", "total")
    digests = F.transform(
        "states",
        lambda one: F.struct(
            one[NODE].alias(NODE), F.struct(*(one[name].alias(name) for name in shown)).alias("shown")
        ),
    )
    one = unequal.where("NOT is_tree").select(F.explode(digests).alias("one"), digests.alias("others"))
    both = one.select("one", F.explode("others").alias("other")).where(
        (F.col("one")[NODE] < F.col("other")[NODE]) & ~F.col("one.shown").eqNullSafe(F.col("other.shown"))
    )
    counted = both.groupBy(F.col("one")[NODE].alias("one"), F.col("other")[NODE].alias("other")).count().collect()
    found = {(pair["one"], pair["other"]): pair["count"] for pair in counted}
    return tuple(PairSummary(one, other, found.get((one, other), 0)) for one, other in combinations(sorted(nodes), 2))


def _kinds(messages: DataFrame) -> dict[str, int]:
    conditions: Mapping[str, Column] = {
        "missing": F.size("missing_on") > 0,
        "expunged": F.size("expunged_on") > 0,
        **{name: F.col(name) for name in KINDS[2:]},
    }
    counted: Row | None = messages.agg(
        F.count("*").alias("all"), *(F.count_if(holds).alias(name) for name, holds in conditions.items())
    ).first()
    assert counted is not None
    return counted.asDict()


def _worst(mailboxes: DataFrame) -> tuple[UserSummary, ...]:
    by_user = (
        mailboxes.where(F.col("user").isNotNull())
        .groupBy("user")
        .agg(F.count("*").alias("mailboxes"), F.sum("differing").alias("messages"))
        .orderBy(F.desc("messages"), F.desc("mailboxes"), "user")
    )
    return tuple(UserSummary(one["user"], one["mailboxes"], one["messages"]) for one in by_user.take(WORST))
