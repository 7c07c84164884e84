"""Metrics of message bodies, and of what the tasks in the background have yet to do."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import ContentConfig
from replicator.imap.rendering.outline import OUTLINER
from replicator.replication import timing
from replicator.replication.bodies.upkeep.outlines import Outlines
from replicator.replication.node_metrics import backlog_counts
from tests.replication.cluster import HEARTBEAT_S, cluster
from tests.replication.metrics import known, refreshed

COUNTED_S = timing.NODE_METRICS_COUNT_EVERY_S + HEARTBEAT_S


async def test_rows_that_wait_are_counted_at_leisure(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "NODE_METRICS_COUNT_EVERY_S", HEARTBEAT_S)  # before other tasks see that rows are odd
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node = nodes["dc1"]
        for number in range(3):
            await node.save(f"{number}" * 10)
        await node.expunge(1, 2)
        await node.store.write(lambda tx: tx.connection.execute("INSERT INTO lacking VALUES (1, x'00')"))
        await node.store.write(lambda tx: tx.connection.execute("INSERT INTO doomed VALUES (x'00')"))
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "texts_lacking") == 1
        assert (await node.report.node_status()).texts_lacking == 1
        assert known(node.registry, "deletion_candidates") == 1
        assert known(node.registry, "expunged_kept_messages") == 2
        assert known(node.registry, "expunged_kept_bytes") == 20
        assert known(node.registry, "mailboxes_postponed") == 0
        await node.store.write(lambda tx: tx.connection.execute("DELETE FROM lacking"))
        await node.store.write(lambda tx: tx.connection.execute("DELETE FROM doomed"))
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "texts_lacking") == known(node.registry, "deletion_candidates") == 0


async def test_counts_take_a_small_share_of_the_time_however_long_one_takes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = list[float]()

    def take_long(*_: object) -> int:
        began.append(trio.current_time())
        autojump_clock.jump(4.0)
        return 7

    monkeypatch.setattr(backlog_counts, "lacking_count", take_long)
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        await trio.sleep(3 * backlog_counts.PAUSE_SHARE * 4.0 + 20)
        assert known(nodes["dc1"].registry, "texts_lacking") == 7
    assert len(began) == 4


async def test_what_is_not_counted_yet_is_not_zero(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr("replicator.replication.node_metrics.node_metrics.count_at_leisure", never)
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        for name in ("texts_lacking", "expunged_kept_messages", "deletion_candidates", "mailboxes_postponed"):
            assert math.isnan(known(nodes["dc1"].registry, name))


async def do_nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


async def test_bodies_without_an_outline_are_shown_until_they_have_one(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node = nodes["dc1"]
        for number in range(3):
            await node.save(f"Subject: {number}\r\n\r\n")
        await trio.sleep(COUNTED_S)
        assert known(node.registry, "outlines_waiting") == 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.coordinator.bodies.outline, OUTLINER)
            await trio.sleep(60)
            assert known(node.registry, "outlines_waiting") == known(node.registry, "outlines_outdated") == 0
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            newer = replace(OUTLINER, version=OUTLINER.version + 1)
            monkeypatch.setattr(Outlines, "catch_up", do_nothing)
            nursery.start_soon(node.coordinator.bodies.outline, newer)
            await trio.sleep(COUNTED_S)
            assert known(node.registry, "outlines_outdated") == 3
            nursery.cancel_scope.cancel()


async def test_expunged_mail_that_is_kept_for_too_long_is_shown(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for interval in ("RETENTION_LEAST_S", "RETENTION_MOST_S"):
        monkeypatch.setattr(timing, interval, 1e9)  # nothing is removed
    content = ContentConfig(keep_expunged_s=100.0)
    async with cluster(tmp_path, autojump_clock, 1, content=content) as nodes, refreshed(nodes["dc1"]):
        node = nodes["dc1"]
        await node.save("text")
        await node.expunge(1)
        await trio.sleep(90)
        assert known(node.registry, "expunged_overdue_seconds") == 0
        await trio.sleep(60)
        assert known(node.registry, "expunged_overdue_seconds") == pytest.approx(50, abs=2)
