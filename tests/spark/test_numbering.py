"""Running numbers within mailboxes of all sizes, and the cost of a fold: the work of each task, and the kept rows."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from protocol.values import Dot
from resync.row import Row
from resync.state import MailboxState
from spark.audit import audit
from spark.comparison import mailboxes, merging, messages, new_uids, sums, versions
from spark.reading import inventories
from tests.spark.clusters import fingerprint_sum
from tests.spark.settings import SHUFFLED_JOINS, settings
from tests.spark.writing import head_record, message_record, write

LARGE, SMALL = b"l" * 16, b"s" * 16
COUNT = 400


def sizes(frame: DataFrame) -> list[int]:
    return [one["count"] for one in frame.groupBy(spark_partition_id()).count().collect()]


@pytest.mark.long
def test_rows_are_numbered_in_order_within_each_mailbox(spark: SparkSession) -> None:
    rng = random.Random(5)
    counts = [300, 0, *(rng.randint(1, 9) for _ in range(40)), 200]
    rows = [(bytes([mailbox]), seq) for mailbox, count in enumerate(counts) for seq in rng.sample(range(1000), count)]
    rng.shuffle(rows)
    frame = spark.createDataFrame(rows, "mailbox binary, seq bigint")
    with settings(spark, SHUFFLED_JOINS):
        found = new_uids.numbered(frame, ["seq"], audit.keep).collect()
    expected: dict[bytes, list[int]] = {}
    for mailbox, seq in sorted(rows):
        expected.setdefault(mailbox, []).append(seq)
    by_number = {(bytes(one["mailbox"]), one["number"]): one["seq"] for one in found}
    assert len(found) == len(rows)
    assert by_number == {(mailbox, n): seq for mailbox, seqs in expected.items() for n, seq in enumerate(seqs)}


def forked(tmp_path: Path, shown: dict[str, dict[bytes, int]]) -> dict[str, str]:
    """Write an inventory for each node, in which each mailbox has so many messages that no other node has."""
    places = {}
    for node, counts in shown.items():
        heads, messages = [], []
        for mailbox, count in counts.items():
            origin = f"{node}.x"
            rows = {
                uid: Row(
                    uid, Dot(origin, uid), 0, f"{node}{uid:015}".encode(), Dot(origin, uid), uid, {}, 0, 1, b"h" * 32
                )
                for uid in range(1, count + 1)
            }
            state = MailboxState(count + 1, count, {origin: count}, rows)
            heads.append(
                head_record(
                    mailbox,
                    state,
                    Dot(origin, count),
                    stated_count=count,
                    stated_sum=fingerprint_sum(state),
                    master="a",
                )
            )
            messages += [message_record(mailbox, row) for row in rows.values()]
        write(tmp_path / node, node, {"heads": heads, "messages": messages})
        places[node] = str(tmp_path / node)
    return places


def folded(spark: SparkSession, places: dict[str, str]) -> tuple[DataFrame, list[DataFrame]]:
    """Return the merged messages, and the frames that were kept on the way."""
    read = inventories.read(spark, places)
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(audit.keep(frame))
        return kept[-1]

    compared = audit.keep(sums.compared(read.tables, read.nodes))
    related = audit.keep(mailboxes.classified(compared, read.tables["heads"], read.tables["folders"], read.nodes))
    summary = mailboxes.summary(related)
    gathered = versions.gathered(related, read.tables["messages"], read.nodes, summary, keep)
    return merging.folded(gathered, summary.steps, keep), kept


@pytest.fixture(scope="module")
def merged(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[DataFrame, list[DataFrame]]]:
    """Merge a mailbox in which all messages differ, and a small one. Yield the messages and the kept frames."""
    counts = {"a": {LARGE: COUNT, SMALL: 1}, "b": {LARGE: COUNT}, "c": {SMALL: 1}}
    with settings(spark, SHUFFLED_JOINS):
        yield folded(spark, forked(tmp_path_factory.mktemp("forked"), counts))


@pytest.mark.long
def test_renumbering_a_large_mailbox_is_spread_over_partitions(
    merged: tuple[DataFrame, list[DataFrame]],
) -> None:
    found, kept = merged
    moved = found.where(f"given IS NOT NULL AND mailbox = X'{LARGE.hex()}'")
    given = sorted(one["uid"] for one in moved.collect())
    of_large = [frame.where(f"mailbox = X'{LARGE.hex()}'") for frame in kept if "mailbox" in frame.columns]
    wide = [sizes(frame) for frame in (*of_large, moved)]
    assert given == list(range(COUNT + 1, 3 * COUNT + 1))
    for some in wide:
        assert max(some) < COUNT
    assert sum(wide[-1]) == 2 * COUNT
    assert found.where("uid IS NOT NULL").count() == 2 * COUNT + 2


@pytest.mark.long
def test_missing_placements_are_computed_once_for_all_nodes(
    merged: tuple[DataFrame, list[DataFrame]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The computation compares every two versions: 400 steps a message of 20 nodes, or 8,000 if done for each node."""
    found, _ = merged
    messages.kinds(found, ("a", "b", "c")).explain()
    named = re.findall(r"filter\(\[a,b,c\], lambdafunction\((.{30})", capsys.readouterr().out)
    assert len(named) >= 2
    assert not [begins for begins in named if "aggregate" in begins], named
