"""Comparison of mailboxes by sums: its results for real databases, and the rows that it moves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from protocol.values import Dot
from replicator.store.db import queries
from replicator.store.inventory.conversation import Order
from replicator.store.inventory.targets import Directory
from replicator.store.inventory.writing import InventoryWriter
from resync.row import Row
from resync.state import MailboxState
from spark.audit.audit import keep
from spark.comparison import mailboxes, sums, versions
from spark.reading import inventories
from spark.reading.inventories import Inventories
from tests.inventory.reading_back import dc7
from tests.spark.clusters import fingerprint_sum
from tests.spark.settings import SHUFFLED_JOINS, settings
from tests.spark.writing import head_record, message_record, write
from tests.store.memory_cluster import Cluster, save


def compared(read: Inventories) -> DataFrame:
    return sums.compared(read.tables, read.nodes)


def classified(read: Inventories) -> DataFrame:
    return mailboxes.classified(compared(read), read.tables["heads"], read.tables["folders"], read.nodes)


@pytest.mark.long
def test_mailboxes_are_equal_exactly_where_digests_are_equal(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(11)
    cluster = Cluster(3)
    for step in range(150):
        if step % 10 == 9:
            cluster.exchange(rng, 30)
        else:
            cluster.change(rng.choice(cluster.keys), rng)
    cluster.settle()
    save(cluster.masters[cluster.keys[0]], cluster.keys[0], rng)
    places = {}
    digests: dict[bytes, list[bytes]] = {}
    for number, node in enumerate(cluster.nodes):
        sid, place = f"dc{number}", str(tmp_path / str(number))
        target = Directory(Path(place))
        target.prepare(overwrite=False)
        order = Order("node.db", place, None, place, overwrite=False, cluster="mail", node=sid, origin=f"{sid}.a")
        InventoryWriter(node.connection, target, lambda _: None, dc7).write(order)
        places[sid] = place
        for head in queries.chains_of(node.connection, None):
            digests.setdefault(head.id, []).append(head.digest())
        node.connection.close()
    found = {bytes(one["mailbox"]): one["is_equal"] for one in compared(inventories.read(spark, places)).collect()}
    assert found == {mailbox: len(some) == 3 and len(set(some)) == 1 for mailbox, some in digests.items()}
    assert set(found.values()) == {True, False}


def two_nodes(tmp_path: Path, messages: tuple[int, int], stated_count: int | None = None) -> dict[str, str]:
    """Write inventories of two nodes with so many messages in one mailbox. Their heads state `stated_count`."""
    places = {}
    for node, count in zip("ab", messages, strict=True):
        head = Dot("a.x", count)
        rows = {
            uid: Row(uid, Dot("a.x", uid), 0, uid.to_bytes(16), Dot("a.x", uid), uid, {}, 0, 1, b"h" * 32)
            for uid in range(1, count + 1)
        }
        state = MailboxState(count + 1, count, {"a.x": count}, rows)
        record = head_record(
            b"m" * 16,
            state,
            head,
            stated_count=count if stated_count is None else stated_count,
            stated_sum=fingerprint_sum(state),
            master="a",
        )
        write(
            tmp_path / node,
            node,
            {"heads": [record], "messages": [message_record(b"m" * 16, row) for row in rows.values()]},
        )
        places[node] = str(tmp_path / node)
    return places


@pytest.mark.long
def test_heads_with_the_same_wrong_count_are_damaged(spark: SparkSession, tmp_path: Path) -> None:
    read = inventories.read(spark, two_nodes(tmp_path, (3, 3), stated_count=4))
    related = classified(read)
    assert [one["relation"] for one in related.collect()] == ["damaged"]


@pytest.mark.long
def test_folders_without_a_tree_head_are_damaged_even_if_all_nodes_agree(spark: SparkSession, tmp_path: Path) -> None:
    folder = {
        "mailbox": b"m" * 16, "user": "bob", "name": "INBOX", "uidvalidity": 7, "deleted": False, "time": 1, "sid": "a",
    }  # fmt: skip
    for node in "ab":
        write(tmp_path / node, node, {"folders": [folder]})
    related = classified(inventories.read(spark, {node: str(tmp_path / node) for node in "ab"}))
    assert [(one["is_tree"], one["relation"]) for one in related.collect()] == [(True, "damaged")]


@pytest.mark.long
def test_trees_whose_annotations_differ_are_not_equal(spark: SparkSession, tmp_path: Path) -> None:
    cases = [(b"x", b"x"), (None, None), (b"x", b"y"), (None, b""), (b"x", None)]
    state = MailboxState(1, 1, {"a.x": 1})
    for node, values in zip("ab", zip(*cases, strict=True), strict=True):
        heads, annotations = [], []
        for number, value in enumerate(values):
            head = head_record(bytes([number]) * 16, state, Dot("a.x", 1), stated_count=0, stated_sum=0, master="a")
            heads.append({**head, "user": f"user{number}", "uidvalidity": 0})
            shared = {"user": f"user{number}", "folder": b"", "name": "/private/comment", "time": 1, "sid": "a"}
            annotations.append({**shared, "value": value})
        write(tmp_path / node, node, {"heads": heads, "annotations": annotations})
    found = compared(inventories.read(spark, {node: str(tmp_path / node) for node in "ab"})).collect()
    equal = {row["mailbox"][0]: row["is_equal"] for row in found}
    assert equal == {number: one == other for number, (one, other) in enumerate(cases)}


@pytest.mark.long
def test_rows_are_summed_before_the_shuffle(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(inventories.read(spark, two_nodes(tmp_path, (3, 2)))).explain()
    plan = capsys.readouterr().out
    assert "SortAggregate" not in plan
    below_the_first_shuffle = plan[plan.rindex("Exchange hashpartitioning") :]
    assert "partial_sum" in below_the_first_shuffle
    assert "FileScan" in below_the_first_shuffle


@pytest.mark.long
def test_large_mailbox_is_spread_over_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """The rows are spread also if a join with an unbroadcast plan has brought them into one partition."""
    read = inventories.read(spark, two_nodes(tmp_path, (200, 0)))
    related = classified(read).localCheckpoint()
    summary = mailboxes.summary(related)._replace(dots=versions.PLANS_BYTES_MAX // versions.DOT_BYTES)
    of = related, read.tables["messages"], read.nodes, summary
    with settings(spark, SHUFFLED_JOINS):
        touched = versions._touched(versions._with_plans(*of), 2)
        for found in (touched, versions.gathered(*of, keep)):
            sizes = [row["count"] for row in found.groupBy(spark_partition_id()).count().collect()]
            assert sum(sizes) == 200
            assert len(sizes) == 4


@pytest.mark.long
def test_rows_equal_at_all_nodes_are_not_gathered(spark: SparkSession, tmp_path: Path) -> None:
    read = inventories.read(spark, two_nodes(tmp_path, (200, 197)))
    related = classified(read).localCheckpoint()
    gathered = versions.gathered(related, read.tables["messages"], read.nodes, mailboxes.summary(related), keep)
    assert sorted(int.from_bytes(row["guid"]) for row in gathered.collect()) == [198, 199, 200]


@pytest.mark.long
def test_small_contexts_are_broadcast(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The limit counts dots, since even a few mailboxes may have contexts of very many origins."""
    read = inventories.read(spark, two_nodes(tmp_path, (2, 1)))
    related = classified(read).localCheckpoint()
    summary = mailboxes.summary(related)
    assert (summary.unequal, summary.dots) == (1, 2)
    with settings(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        for dots, is_sent in ((2, True), (versions.PLANS_BYTES_MAX // versions.DOT_BYTES, False)):
            of = related, read.tables["messages"], read.nodes, summary._replace(dots=dots)
            versions._with_plans(*of).select("mailbox", "claim_seen").explain()
            plan = capsys.readouterr().out.splitlines()
            joins = [line for line in plan if "Join" in line and "LeftSemi" not in line]
            assert [("Broadcast" in line) for line in joins] == [is_sent], joins
