"""Clusters whose nodes write checkpoints and truncate their logs."""

import logging
import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import LogConfig, MastershipConfig
from replicator.replication import timing
from replicator.replication.checkpoints.log_truncation import LogTruncation
from tests.replication.cluster import Node, cluster
from tests.replication.log.truncating import SAID_S, checkpoint, log_entries
from tests.replication.tasks.running import check_at

CALM = MastershipConfig(heartbeat_s=60.0, timeout_s=240.0)  # hours of virtual time: each heartbeat costs real time


async def check(node: Node) -> None:
    """Check that a check of the node finds no damage and nothing unproven."""
    status = await check_at(node)
    assert (status.damage, status.unproven) == ({}, 0)


async def test_entries_leave_the_log_when_all_nodes_have_settled_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number, sid in enumerate(nodes.sids):
            await nodes[sid].save(f"text {number}")
        before = await nodes.converged()
        await trio.sleep(SAID_S)
        for node in nodes.all():
            assert (await checkpoint(node)).in_force
            assert await log_entries(node) == 0
            await check(node)
        assert await nodes.converged() == before
        await nodes["dc2"].flag(1)
        await nodes["dc3"].save("one more")
        await nodes.converged()
        for node in nodes.all():
            assert await log_entries(node) == 2
            await check(node)


async def test_log_is_kept_while_a_node_is_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("all have it")
        await nodes.converged()
        await trio.sleep(SAID_S)
        await nodes.stop("dc3")
        await nodes.linked(["dc1", "dc2"])
        await nodes["dc1"].save("two have it")
        await nodes.converged()
        await trio.sleep(SAID_S)
        status = await checkpoint(nodes["dc1"])
        assert (status.in_force, status.waits_for) == (False, ("dc3",))
        assert await log_entries(nodes["dc1"]) == 3
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        await trio.sleep(SAID_S)
        assert nodes["dc1"].coordinator.log_truncation.checkpoint_status().in_force
        assert await log_entries(nodes["dc1"]) == 0


@pytest.mark.long
async def test_node_catches_up_after_an_absence_longer_than_log_keep(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, log=LogConfig(keep_s=7200.0), mastership=CALM) as nodes:
        await nodes["dc3"].save("all have it")
        await nodes.converged()
        await trio.sleep(SAID_S)
        await nodes.stop("dc3")
        await nodes.linked(["dc1", "dc2"])
        for number in range(5):
            await nodes["dc1"].save(f"two have it {number}")
        await nodes["dc2"].expunge(1)
        with caplog.at_level(logging.WARNING):
            await trio.sleep(20_000)
        assert "`log.keep`: truncating it although dc3 did not confirm all of its entries" in caplog.text
        assert await log_entries(nodes["dc1"]) == 0
        for link in (await nodes["dc1"].report.node_status()).links:
            if link.peer == "dc3":
                assert (link.lag_entries, link.lag_bytes, link.lag_s) == (6, None, None)
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        await trio.sleep(SAID_S)
        assert sorted((await nodes["dc3"].bodies()).values()) == [f"two have it {number}" for number in range(5)]
        await nodes["dc3"].save("it takes mail again")
        await nodes.converged()
        for node in nodes.all():
            await check(node)


@pytest.mark.long
async def test_checkpoints_on_demand_do_not_restart_the_log_keep_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, log=LogConfig(keep_s=7200.0), mastership=CALM) as nodes:
        await nodes["dc3"].save("all have it")
        await nodes.converged()
        await trio.sleep(SAID_S)
        await nodes.stop("dc3")
        await nodes.linked(["dc1", "dc2"])
        made = set()
        for number in range(7):
            await nodes["dc1"].save(f"two have it {number}")
            status = await checkpoint(nodes["dc1"])
            assert not status.in_force
            assert "dc3" in status.waits_for
            made.add(status.made_ms)
            await trio.sleep(1000)
        assert len(made) == 1
        await trio.sleep(7200)
        assert await log_entries(nodes["dc1"]) < 7


@pytest.mark.long
async def test_forks_are_merged_from_checkpoints(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, mastership=CALM) as nodes:
        for number in range(5):
            await nodes["dc1"].save(f"before {number}")
        await nodes.converged()
        await trio.sleep(SAID_S)
        for node in nodes.all():
            assert (await checkpoint(node)).in_force
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc1"].save("here")
        await nodes["dc3"].save("there")
        await nodes["dc3"].flag(2)
        await trio.sleep(4000)
        assert not nodes["dc1"].coordinator.log_truncation.checkpoint_status().in_force
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        bodies = sorted((await nodes["dc2"].bodies()).values())
        assert bodies == [*(f"before {number}" for number in range(5)), "here", "there"]
        for node in nodes.all():
            await check(node)
        await trio.sleep(4000)
        assert [await log_entries(node) for node in nodes.all()] == [0, 0, 0]


async def test_linked_peer_recovers_when_its_backlog_leaves_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The link is slow: entries leave the log, by its size limit, before the peer has received them."""
    monkeypatch.setattr(timing, "LOG_TRUNCATION_AGE_MIN_S", 0.0)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.network.road("dc1", "dc2").bytes_per_s = 300_000
        dice = random.Random("mail that does not compress well")
        for number in range(60):
            await nodes["dc1"].save(f"{number} {dice.randbytes(50_000).hex()}")
        log_truncation = nodes["dc1"].coordinator.log_truncation
        assert isinstance(log_truncation, LogTruncation)
        log_truncation._limits = LogConfig(max_size_bytes=1)
        with caplog.at_level(logging.WARNING):
            await checkpoint(nodes["dc1"])
            assert await log_entries(nodes["dc1"]) == 0
            assert len(await nodes["dc2"].bodies()) < 40
            nodes.network.road("dc1", "dc2").bytes_per_s = None
            await nodes.converged()
        assert "dc2 lacks entries that have left this node's log" in caplog.text
        assert len(await nodes["dc2"].bodies()) == 61


async def test_node_serves_without_its_object_store(tmp_path: Path, autojump_clock: MockClock) -> None:
    (tmp_path / "checkpoints").write_text("no directory")
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        await trio.sleep(30)
        for node in nodes.all():
            status = (await node.report.node_status()).checkpoint
            assert "checkpoints" in (status.error or "")
            assert await log_entries(node) == 2
            await check(node)
