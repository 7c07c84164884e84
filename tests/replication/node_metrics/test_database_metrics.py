"""Metrics of commits, of the writer's queue, and of disks."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from protocol.values import Dot
from replicator.replication import timing
from replicator.replication.node_metrics import node_metrics
from replicator.replication.node_metrics.database_metrics import Sizes, look_at_disk
from tests.replication.cluster import HEARTBEAT_S, USER, cluster
from tests.replication.metrics import known, refreshed, value
from tests.replication.slow_disk import delay_writes
from tests.store.harness import connection_of


def groups(registry: CollectorRegistry) -> tuple[float, float]:
    """Return how many transactions there were, and of how many requests."""
    return known(registry, "commit_jobs_count"), known(registry, "commit_jobs_sum")


async def test_requests_that_share_a_commit_are_counted_as_a_group(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node, goes_on = nodes["dc1"], trio.Event()
        await node.save("text")
        commits, jobs = groups(node.registry)
        assert commits == known(node.registry, "commits_total") == known(node.registry, "commit_seconds_count")
        delay_writes(node, goes_on.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.save, "is being written")
            await trio.sleep(1)
            for number in range(7):
                nursery.start_soon(node.save, f"{number}")
            await trio.sleep(1)
            await node.metrics.refresh()
            waiting = known(node.registry, "writer_queue_jobs")
            goes_on.set()
        assert waiting == 7
        await node.metrics.refresh()
        assert known(node.registry, "writer_queue_jobs") == 0
        assert groups(node.registry) == (commits + 2, jobs + 8)
        assert known(node.registry, "commit_jobs_bucket", le="5.0") == commits + 1
        assert known(node.registry, "commit_jobs_bucket", le="10.0") == commits + 2


async def test_time_of_a_commit_is_that_of_the_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("text")
        before = known(node.registry, "commit_seconds_sum")

        def take_long(statement: str) -> None:
            autojump_clock.jump(0.3 if statement == "COMMIT" else 0.01)

        connection_of(node.store).set_trace_callback(take_long)
        await node.save("more")
        connection_of(node.store).set_trace_callback(None)
        assert known(node.registry, "commit_seconds_sum") == pytest.approx(before + 0.3)


async def test_change_is_observed_once_enough_disks_have_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        node, goes_on = nodes["dc1"], trio.Event()
        await node.save("text")
        before, took_s = (known(node.registry, f"durable_write_seconds_{what}") for what in ("count", "sum"))
        assert before == 2  # the folder, and the message
        assert took_s < 0.1
        delay_writes(nodes["dc2"], goes_on.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.save, "waits for the other disk")
            await trio.sleep(3)
            assert known(node.registry, "durable_write_seconds_count") == before
            goes_on.set()
        assert known(node.registry, "durable_write_seconds_count") == before + 1
        assert known(node.registry, "durable_write_seconds_sum") == pytest.approx(took_s + 3, abs=0.2)
        assert known(nodes["dc2"].registry, "durable_write_seconds_count") == 0, "its master alone observes a change"


async def test_change_for_which_nobody_waits_any_more_is_observed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        node, goes_on = nodes["dc1"], trio.Event()
        await node.save("text")
        before = known(node.registry, "durable_write_seconds_bucket", le="2.0")
        delay_writes(nodes["dc2"], goes_on.wait)
        with trio.move_on_after(4):
            await node.save("the client leaves")
        assert known(node.registry, "durable_write_seconds_count") == before + 1
        assert known(node.registry, "durable_write_seconds_bucket", le="2.0") == before
        goes_on.set()


async def test_sizes_are_those_of_the_files_and_of_their_file_system(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node = nodes["dc1"]
        data = node.config.node.data
        await node.save(random.Random(0).randbytes(100_000).hex())
        await trio.sleep(2 * timing.NODE_METRICS_COUNT_EVERY_S)
        assert known(node.registry, "database_bytes") == (data / "node.db").stat().st_size
        wal_bytes = (data / "node.db-wal").stat().st_size
        assert 100_000 < wal_bytes - 10_000 <= known(node.registry, "database_wal_bytes") <= wal_bytes
        state, directory = os.statvfs(data), str(data)
        size_bytes = state.f_blocks * state.f_frsize
        assert known(node.registry, "disk_size_bytes", directory=directory) == size_bytes
        free_bytes = known(node.registry, "disk_free_bytes", directory=directory)
        assert 0 < free_bytes <= size_bytes
        assert free_bytes == pytest.approx(state.f_bavail * state.f_frsize, rel=0.2)
        assert known(node.registry, "entries_without_room", directory=directory) == 0
        node.coordinator.disk_shortage.note(self := object(), {Dot("dc2.a", 1): (USER, 1000)}, data)
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "entries_without_room", directory=directory) == 1
        assert known(node.registry, "healthy") == 0
        node.coordinator.disk_shortage.note(self, {}, data)


async def test_disk_that_cannot_be_looked_at_leaves_the_last_sizes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def fail_later(database: Path, directories: tuple[Path, ...]) -> Sizes:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise OSError("the disk is gone")
        return look_at_disk(database, directories)

    monkeypatch.setattr(node_metrics, "look_at_disk", fail_later)
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        registry = nodes["dc1"].registry
        before = known(registry, "database_bytes")
        await trio.sleep(5 * timing.NODE_METRICS_COUNT_EVERY_S)
        assert looks > 3
        assert known(registry, "database_bytes") == before
        assert value(registry, "link_up", "dc2") is None
