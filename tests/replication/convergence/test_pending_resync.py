"""Postponed mailboxes do not count as settled, and become equal in the end."""

import logging
import re
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import covers
from replicator.errors import NotReadyError
from replicator.replication import timing
from replicator.replication.convergence import state_transfer
from replicator.store.log import pending_resync
from replicator.tasks import ResyncOptions
from tests.replication.cluster import Cluster, cluster
from tests.replication.convergence.holding_up import keep_busy
from tests.replication.log.truncating import forget_log
from tests.replication.tasks.running import resync_at


async def write_without(nodes: Cluster, *sids: str) -> None:
    """Save a message for Ann and Bob, stop the nodes, and save another one for each."""
    for user in ("ann", "bob"):
        await nodes["dc1"].save("before", user=user)
    await nodes.converged()
    for sid in sids:
        await nodes.stop(sid)
    await nodes.linked()
    for user in ("ann", "bob"):
        await nodes["dc1"].save("after", user=user)
    await nodes.converged()


@pytest.mark.long
async def test_postponed_mailbox_is_not_settled_until_it_is_equal(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(tmp_path, autojump_clock) as nodes:
        await write_without(nodes, "dc3")
        await forget_log(nodes["dc1"])  # past `log.max_size`; that of dc2 is whole
        written = dict(nodes["dc1"].store.context)
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("bob")).mailbox_id, "dc3")
        nodes.network.cut(("dc2", "dc3"))
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        for _ in range(2):
            three = nodes["dc3"]
            assert await three.bodies(user="ann") == {1: "before", 2: "after"}
            with pytest.raises(NotReadyError):  # the mailbox is older than elsewhere
                await three.bodies(user="bob")
            assert covers(three.store.context, written)
            assert not covers(three.store.settled(), written)
            assert (await three.report.node_status()).postponed == 1
            await nodes.stop("dc3")
            await nodes.start("dc3")
            await nodes.linked()
        assert "folder 'INBOX' of bob does not equal its state at dc1 yet" in caplog.text
        assert "ERROR" not in {record.levelname for record in caplog.records}, "the mailbox is merely busy"
        rest()
        nodes.network.mend(("dc2", "dc3"))
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes.converged()
        assert re.search("folder 'INBOX' of bob now equals its state at dc[12]", caplog.text)
        assert await nodes["dc3"].bodies(user="bob") == {1: "before", 2: "after"}
        assert covers(nodes["dc3"].store.settled(), written)
        assert await nodes["dc3"].store.read(pending_resync.load) == []


async def test_postponed_mailbox_is_compared_with_another_node_if_its_peer_leaves(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await write_without(nodes, "dc3")
        await forget_log(nodes["dc1"])
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("bob")).mailbox_id, "dc3")
        nodes.network.cut(("dc2", "dc3"))
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        await nodes.stop("dc1")
        nodes.network.mend(("dc2", "dc3"))
        rest()
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        assert await nodes["dc3"].bodies(user="bob") == {1: "before", 2: "after"}
        assert await nodes["dc3"].store.read(pending_resync.load) == [], "dc2 has settled all that dc1 had"


@pytest.mark.long
async def test_bootstrap_fetches_what_the_source_of_its_checkpoints_lacks(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, shares_objects=True) as nodes:
        await write_without(nodes, "dc2")
        for node in nodes.all():
            await forget_log(node)
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("bob")).mailbox_id, "dc2")
        await nodes.start("dc2")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        for sid in ("dc1", "dc3", "dc2"):
            await nodes["dc1"].save(f"before the checkpoints of {sid}", user="ann")
            await trio.sleep(30)
            assert (await nodes[sid].coordinator.log_truncation.checkpoint_now()).mailboxes
        await nodes.stop("dc3")
        nodes.erase("dc3")
        await trio.sleep(timing.BOOTSTRAP_AGE_MIN_S + 10)
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(5)
        rest()
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes["dc1"].save("newer", user="bob")
        await nodes.converged()
        for node in nodes.all():
            assert await node.bodies(user="bob") == {1: "before", 2: "after", 3: "newer"}


@pytest.mark.long
async def test_state_transfer_fetches_what_its_source_lacks(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await write_without(nodes, "dc2", "dc3")
        await forget_log(nodes["dc1"])
        written = dict(nodes["dc1"].store.context)
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("bob")).mailbox_id, "dc3")
        nodes.network.cut(("dc1", "dc2"))
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        nodes.network.cut(("dc1", "dc3"))
        await nodes.start("dc2")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await trio.sleep(2 * state_transfer.ROUNDS)
        two = nodes["dc2"]
        assert await two.bodies(user="ann") == {1: "before", 2: "after"}
        assert await two.bodies(user="bob") == {1: "before"}
        assert not covers(two.store.settled(), written)
        rest()
        nodes.network.mend(("dc1", "dc3"))
        await nodes.linked()
        await trio.sleep(4 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes.converged()
        for node in nodes.all():
            assert await node.bodies(user="bob") == {1: "before", 2: "after"}
            assert covers(node.store.settled(), written)


async def test_second_state_transfer_adds_to_what_is_postponed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await write_without(nodes, "dc2")
        await forget_log(nodes["dc1"])
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("bob")).mailbox_id, "dc2")
        for body in ("once", "twice"):
            await nodes.start("dc2")
            await nodes.linked()
            await trio.sleep(2 * state_transfer.ROUNDS)
            assert await nodes["dc2"].store.read(pending_resync.count) == 1
            origin = nodes["dc1"].store.origin
            assert nodes["dc2"].store.settled().get(origin, 0) < nodes["dc1"].store.context[origin]
            await nodes.stop("dc2")
            await nodes.stop("dc1")
            await nodes.start("dc1")  # the next entries have another origin
            await nodes["dc1"].save(body, user="bob")
            await forget_log(nodes["dc1"])
        rest()
        await nodes.start("dc2")
        await nodes.linked()
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes.converged()
        assert covers(nodes["dc2"].store.settled(), nodes["dc1"].store.context)


async def test_resync_gives_up_a_postponed_mailbox_that_no_node_has(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before", user="bob")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await nodes["dc1"].save("only there", user="bob")
        await forget_log(nodes["dc1"])
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("bob")).mailbox_id, "dc3")
        await nodes.stop("dc2")
        nodes.rejoin("dc1")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        await nodes.stop("dc1")
        rest()
        await nodes.start("dc2")
        await nodes.linked()
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        three = nodes["dc3"]
        assert await three.store.read(pending_resync.load)
        assert [one.peer for one in (await resync_at(three, ResyncOptions())).differences] == ["dc1"]
        assert await three.store.read(pending_resync.load), "dc1 is still configured, and was not asked"
        await nodes.stop("dc3")
        nodes.sids.remove("dc1")
        await nodes.start("dc3")
        await nodes.linked()
        assert (await resync_at(nodes["dc3"], ResyncOptions())).differences == []
        assert await nodes["dc3"].store.read(pending_resync.load) == []
        assert covers(nodes["dc3"].store.settled(), nodes["dc3"].store.context)
