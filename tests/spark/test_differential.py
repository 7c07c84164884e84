"""Relations, merges and kinds of random clusters in one Spark job, compared with the rules in Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from pyspark.sql import DataFrame, SparkSession

from resync.differing import DifferenceKind, Side, kinds
from resync.merge import merge_all
from resync.row import Row
from spark.audit.audit import keep
from spark.comparison import mailboxes, merging, messages, sums, versions
from spark.reading import inventories
from tests.spark.clusters import NODES, Cluster, random_cluster, random_clusters
from tests.spark.writing import row_of, write_clusters

Record: TypeAlias = dict[str, Any]


class SparkResult(NamedTuple):
    """The results of Spark for a set of inventories."""

    nodes: tuple[str, ...]
    mailboxes: dict[bytes, Record]
    heads: dict[bytes, Record]
    rows: dict[bytes, set[str]]
    kinds: dict[bytes, dict[bytes, Record]]


@pytest.mark.long
def test_spark_follows_the_rules_for_two_nodes(spark: SparkSession, tmp_path: Path) -> None:
    clusters = with_each_kind(random_clusters(600))
    found = run_on_spark(spark, write_clusters(clusters, NODES[:2], tmp_path))
    check_relations(clusters, found)
    check_merges(clusters, found)
    check_kinds_of_two(clusters, found)


@pytest.mark.long
def test_spark_follows_the_rules_for_many_nodes(spark: SparkSession, tmp_path: Path) -> None:
    clusters = random_clusters(1400)
    found = run_on_spark(spark, write_clusters(clusters, NODES, tmp_path))
    check_relations(clusters, found)
    check_merges(clusters, found)
    check_kinds(clusters, found)


def run_on_spark(spark: SparkSession, places: dict[str, str]) -> SparkResult:
    read = inventories.read(spark, places)
    compared = sums.compared(read.tables, read.nodes).localCheckpoint()
    related = mailboxes.classified(compared, read.tables["heads"], read.tables["folders"], read.nodes).localCheckpoint()
    summary = mailboxes.summary(related)
    gathered = versions.gathered(related, read.tables["messages"], read.nodes, summary, keep)
    folded = merging.folded(gathered, summary.steps, keep)
    rows = defaultdict(set)
    for one in collected(merging.rows(folded)):
        rows[bytes(one["mailbox"])].add(str(row_of(one)))
    found: dict[bytes, dict[bytes, Record]] = defaultdict(dict)
    for one in collected(messages.kinds(folded, read.nodes)):
        found[bytes(one["mailbox"])][bytes(one["guid"])] = one
    of_mailboxes = by_mailbox(related.select("mailbox", "user", "relation", "uidvalidity_differs", "missing_on"))
    heads = by_mailbox(merging.heads(related, folded))
    return SparkResult(read.nodes, of_mailboxes, heads, dict(rows), dict(found))


def collected(frame: DataFrame) -> list[Record]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def by_mailbox(frame: DataFrame) -> dict[bytes, Record]:
    return {bytes(one["mailbox"]): one for one in collected(frame)}


def check_relations(clusters: Sequence[Cluster], found: SparkResult) -> None:
    counts: dict[str, int] = defaultdict(int)
    for one in clusters:
        if not any(node in one.shown for node in found.nodes):
            assert one.mailbox not in found.mailboxes
            continue
        said = found.mailboxes[one.mailbox]
        relation = one.relation(found.nodes)
        counts[relation] += 1
        there = [one.shown[node] for node in found.nodes if node in one.shown]
        assert said == {
            "mailbox": one.mailbox,
            "user": said["user"],
            "relation": relation,
            "uidvalidity_differs": len({shown.state.risen for shown in there}) > 1,
            "missing_on": [node for node in found.nodes if node not in one.shown],
        }
        assert said["user"] == "alice" or relation == "equal"
    assert all(counts[relation] >= len(clusters) // 200 for relation in ("equal", "behind", "forked", "damaged")), (
        counts
    )


def check_merges(clusters: Sequence[Cluster], found: SparkResult) -> None:
    renumbered = 0
    for one in clusters:
        if one.mailbox not in found.heads:
            assert one.relation(found.nodes) in {"equal", "damaged"}
            assert one.mailbox not in found.rows
            continue
        assert one.relation(found.nodes) != "damaged"
        merged = merge_all([one.at(node).state for node in one.merge_order(found.nodes)])
        said, expected = found.rows.get(one.mailbox, set()), {text(row) for row in merged.rows.values()}
        alike = set.intersection(*({text(row) for row in one.at(node).state.rows.values()} for node in found.nodes))
        assert said <= expected
        assert expected - said <= alike
        assert found.heads[one.mailbox] == {
            "mailbox": one.mailbox,
            "uidnext": merged.uidnext,
            "highestmodseq": merged.modseq,
            "risen": merged.risen,
            "context": merged.context,
        }
        renumbered += any(row.claim.origin == "" for row in merged.rows.values())
    assert renumbered > len(clusters) // 20


def text(row: Row) -> str:
    return str(row._replace(flags=dict(sorted(row.flags.items()))))


def with_each_kind(clusters: list[Cluster]) -> list[Cluster]:
    """Add random clusters until messages differ in each way between two nodes; the rarest is in 1 of 160 clusters."""
    of_trees = {DifferenceKind.RENAMED, DifferenceKind.SUBSCRIPTION, DifferenceKind.ANNOTATION}
    missing = set(DifferenceKind) - of_trees - {DifferenceKind.CONTEXT}
    missing -= set().union(*map(kinds_of_two, clusters))
    while missing:
        seed = random.SystemRandom().randrange(1 << 32)
        more = random_cluster(random.Random(seed), len(clusters).to_bytes(16))
        if found := missing & kinds_of_two(more):
            print(f"cluster {len(clusters)} of seed {seed}")  # noqa: T201
            clusters.append(more)
            missing -= found
    return clusters


def has_kinds(one: Cluster) -> bool:
    """Return False for a damaged or impossible cluster, in which a resync does not go by kinds."""
    return one.relation(NODES[:2]) != "damaged" and not one.is_impossible


def kinds_of_two(one: Cluster) -> set[DifferenceKind]:
    return set().union(*kinds(one.at("a").side(), one.at("b").side()).values()) if has_kinds(one) else set()


def check_kinds_of_two(clusters: Sequence[Cluster], found: SparkResult) -> None:
    for one in filter(has_kinds, clusters):
        said = found.kinds.get(one.mailbox, {})
        assert {guid: as_kinds(kind) for guid, kind in said.items()} == kinds(one.at("a").side(), one.at("b").side())


def as_kinds(said: Record) -> frozenset[DifferenceKind]:
    missing, expunged = said["missing_on"], said["expunged_on"]
    assert isinstance(missing, list)
    assert isinstance(expunged, list)
    names = {
        DifferenceKind.MISSING_HERE: "a" in missing,
        DifferenceKind.MISSING_THERE: "b" in missing,
        DifferenceKind.EXPUNGED_HERE: "a" in expunged,
        DifferenceKind.EXPUNGED_THERE: "b" in expunged,
        DifferenceKind.UID: said["uid_conflict"],
        DifferenceKind.FLAGS: said["flags_differ"],
        DifferenceKind.MODSEQ: said["only_modseq"],
        DifferenceKind.DAMAGE: said["damage"],
    }
    return frozenset(kind for kind, holds in names.items() if holds)


def check_kinds(clusters: Sequence[Cluster], found: SparkResult) -> None:
    """Apply the rule of `resync.differing` to each version and each node."""
    for one in clusters:
        sides = {node: one.at(node).side() for node in found.nodes}
        said = found.kinds.get(one.mailbox, {})
        guids = {guid for side in sides.values() for guid in side.rows}
        for guid in guids:
            shown = [side.rows.get(guid) for side in sides.values()]
            assert (guid in said) == any(row != shown[0] for row in shown)
        for guid, kind in said.items():
            if one.relation(found.nodes) == "damaged":
                assert kind["damage"]
                assert (kind["missing_on"], kind["expunged_on"], kind["uid"], kind["only_modseq"]) == (
                    [],
                    [],
                    None,
                    False,
                )
                continue
            missing, expunged = lacking(sides, guid)
            assert (kind["missing_on"], kind["expunged_on"]) == (sorted(missing), sorted(expunged))


def lacking(sides: dict[str, Side], guid: bytes) -> tuple[set[str], set[str]]:
    missing: set[str] = set()
    expunged: set[str] = set()
    for side in sides.values():
        row = side.rows.get(guid)
        if not isinstance(row, Row):
            continue
        for node, other in sides.items():
            its = other.rows.get(guid)
            if not isinstance(its, Row) or not {*its.placements()} & {*row.placements()}:
                has_seen_all = all(other.has_seen(dot) for dot, _ in row.placements())
                (expunged if has_seen_all else missing).add(node)
    return missing, expunged
