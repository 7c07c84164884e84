"""A node that has just started shows nothing older, and no less, than what the cluster had at that time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot, covers
from replicator.errors import NotReadyError
from replicator.replication import timing
from replicator.replication.links.entry_codec import Announced, Arrived
from replicator.replication.log.receiver import Receiver
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.log import pending_resync
from replicator.store.log.apply import receive
from resync.entry import Entry, MailAdd
from tests.replication.cluster import EPOCH_MS, TIMEOUT_S, Cluster, Node, cluster, until
from tests.replication.convergence.holding_up import keep_busy
from tests.replication.log.truncating import forget_log

MAILS = 20
SMALL_S = 0.5  # what a start takes besides its waits


class Gate:
    """A gate that keeps the logs of its peers from dc3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = trio.Event()
        self.open.set()
        self._write = Receiver._write

        async def write(receiver: Receiver, batch: Sequence[Arrived | Announced]) -> None:
            if receiver._store.origin.startswith("dc3."):
                await self.open.wait()
            await self._write(receiver, batch)

        monkeypatch.setattr(Receiver, "_write", write)

    def shut(self) -> None:
        self.open = trio.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@asynccontextmanager
async def cluster_with_mail(tmp_path: Path, clock: MockClock) -> AsyncIterator[Cluster]:
    """Run a cluster with mail in which dc3 has just been stopped."""
    async with cluster(tmp_path, clock) as nodes:
        nodes.waits_when_new = True
        for user in ("ann", "bob"):
            for number in range(MAILS):
                await nodes["dc1"].save(f"{user} {number}", user=user)
        await nodes.converged()
        await nodes.stop("dc3")
        yield nodes


def is_whole(node: Node) -> bool:
    return node.coordinator.readiness.problem() is None


async def come_back(nodes: Cluster, gate: Gate) -> Node:
    """Start dc3 again, with its gate shut, after mail has come to dc1."""
    await nodes["dc1"].save("away", user="ann")
    gate.shut()
    await nodes.start("dc3")
    await nodes.linked()
    return nodes["dc3"]


def hear_of_dc1(nodes: Cluster, seq: int) -> None:
    """Let dc1 say to dc3 that it has entries of its own up to `seq`."""
    coordinator = nodes["dc3"].coordinator
    link = coordinator.connections.link("dc1")
    assert link is not None
    coordinator.readiness.heard(link, [Dot(nodes["dc1"].store.origin, seq)])


async def test_wiped_node_shows_a_mailbox_whole_or_not_at_all(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        nodes.erase("dc3")
        gate.shut()
        await nodes.start("dc3")
        await nodes.linked()
        node, expected = nodes["dc3"], await nodes["dc1"].bodies(user="ann")
        assert await node.bodies(user="ann") == expected
        assert await node.inbox("ann") == await nodes["dc1"].inbox("ann")
        (problem,) = await node.report.healthy()
        assert f"lacks {2 * MAILS + 2} entries that dc1, dc2 had when this node started" in problem
        nodes.isolate("dc3")
        await until(lambda: not node.coordinator.connections.links)
        assert await node.bodies(user="ann") == expected
        with pytest.raises(NotReadyError, match="yet to catch up"):
            await node.bodies(user="bob")
        await trio.sleep(3 * TIMEOUT_S)
        with pytest.raises(NotReadyError):
            await node.save("too early", user="bob")
        await nodes.stop("dc3")
        await nodes.start("dc3")  # it has not begun, and counts as new
        await trio.sleep(3 * TIMEOUT_S)
        node = nodes["dc3"]
        with pytest.raises(NotReadyError, match="this node is new"):
            await node.bodies(user="ann")
        nodes.rejoin("dc3")
        gate.open.set()
        await nodes.linked()
        await until(lambda: is_whole(node))
        assert not await node.report.healthy()
        assert await node.bodies(user="bob") == await nodes["dc1"].bodies(user="bob")
        await nodes.converged()


async def test_returning_node_shows_no_outdated_mailbox(tmp_path: Path, autojump_clock: MockClock, gate: Gate) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        for number in range(MAILS):
            await nodes["dc1"].save(f"away {number}", user="ann")
        gate.shut()
        await nodes.start("dc3")
        node = nodes["dc3"]
        assert await node.bodies(user="ann") == await nodes["dc1"].bodies(user="ann")
        assert not is_whole(node)
        assert await node.save("goes on", user="ann") == 2 * MAILS + 1
        gate.open.set()
        await until(lambda: is_whole(node))
        await nodes.linked()
        await nodes.converged()


async def test_node_serves_at_once_after_a_short_absence(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        began = trio.current_time()
        await nodes.start("dc3")
        assert len(await nodes["dc3"].bodies(user="ann")) == MAILS
        assert trio.current_time() < began + TIMEOUT_S / 2 + SMALL_S, "peers dial every two seconds"
        await nodes.linked()
        assert is_whole(nodes["dc3"])


async def test_node_that_reaches_no_peer_serves_what_it_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        began = trio.current_time()
        await nodes.start("dc3")
        node = nodes["dc3"]
        (problem,) = await node.report.healthy()
        assert "waits to hear what the other nodes have" in problem
        assert len(await node.bodies(user="ann")) == MAILS
        assert trio.current_time() < began + TIMEOUT_S + SMALL_S
        assert not await node.report.healthy()
        nodes.rejoin("dc3")
        await nodes.linked()


async def test_node_that_loses_its_peers_during_catch_up_serves_alone(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        await come_back(nodes, gate)
        nodes.isolate("dc3")
        await until(lambda: is_whole(nodes["dc3"]))
        assert len(await nodes["dc3"].bodies(user="ann")) == MAILS
        gate.open.set()
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()


async def test_reconnected_node_serves_without_waiting(tmp_path: Path, autojump_clock: MockClock, gate: Gate) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc3"].save("before")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc1"].save("there")
        gate.shut()
        nodes.rejoin("dc3")
        await nodes.linked()
        began = trio.current_time()
        assert list((await nodes["dc3"].bodies()).values()) == ["before"]
        assert trio.current_time() == began
        assert not await nodes["dc3"].report.healthy()
        gate.open.set()
        await nodes.converged()


async def test_client_of_a_slow_mailbox_gets_an_error_in_time(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        nodes.erase("dc3")
        gate.shut()
        await nodes.start("dc3")
        await nodes.linked()
        node = nodes["dc3"]
        reconcile = node.coordinator.reconciliation.reconcile

        async def slow(*arguments: object) -> object:
            await trio.sleep(timing.READINESS_PATIENCE_S)
            return await reconcile(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(node.coordinator.reconciliation, "reconcile", slow)
        began = trio.current_time()
        with pytest.raises(NotReadyError):
            await node.mail.folders("ann")
        assert trio.current_time() < began + timing.READINESS_PATIENCE_S + SMALL_S
        await trio.sleep(2 * timing.READINESS_PATIENCE_S)  # the comparison has gone on meanwhile
        assert len(await node.mail.folders("ann")) == 1
        gate.open.set()
        await nodes.converged()


@pytest.mark.long
async def test_wiped_node_hides_mailboxes_that_a_state_transfer_postponed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        for sid in ("dc1", "dc2"):
            await forget_log(nodes[sid])
        nodes.erase("dc3")
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("ann")).mailbox_id, "dc3")
        await nodes.start("dc3")
        node = nodes["dc3"]
        await until(lambda: covers(node.store.context, nodes["dc1"].store.context))
        await trio.sleep(TIMEOUT_S)
        assert await node.bodies(user="bob") == await nodes["dc1"].bodies(user="bob")
        with pytest.raises(NotReadyError):
            await node.bodies(user="ann")
        assert not node.coordinator.admission.begun.is_set()
        (problem,) = await node.report.healthy()
        assert "a state transfer has left mailboxes" in problem
        rest()
        assert await node.bodies(user="ann") == await nodes["dc1"].bodies(user="ann")
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        assert not await node.store.read(pending_resync.load)
        assert node.coordinator.admission.begun.is_set()
        assert not await node.report.healthy()


async def test_mailbox_with_waiting_entries_is_compared_before_it_is_shown(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        one = nodes["dc1"]
        folder, stored = await one.inbox("ann"), StoredBody.of(b"waits")
        added = MailAdd(MAILS + 1, b"g" * 16, EPOCH_MS, (), len(b"waits"), stored.content_hash, copied=False)
        mailbox = ("ann", folder.mailbox_id, folder.uidvalidity)
        before = Dot("dc8.lost", 7)
        entry = Entry(Dot("dc9.lost", 1), (before,), one.store.last_time + 1, 10 * MAILS, *mailbox, (added,))
        await one.store.write(lambda tx: receive(tx, entry, [stored]))
        rest = keep_busy(monkeypatch, folder.mailbox_id, "dc3")
        await nodes.start("dc3")
        node = nodes["dc3"]
        await until(lambda: node.store.has_waiting(folder.mailbox_id))
        await nodes.linked()
        assert len(await node.bodies(user="bob")) == MAILS
        assert not await node.report.healthy()
        with pytest.raises(NotReadyError):
            await node.bodies(user="ann")
        rest()
        assert node.store.has_waiting(folder.mailbox_id)
        assert await node.bodies(user="ann") == await one.bodies(user="ann")


async def test_node_gives_its_peers_time_to_come_back_after_a_stall(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("away", user="ann")
        gate.shut()
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(SMALL_S)
        node = nodes["dc3"]
        nodes.isolate("dc2")
        autojump_clock.jump(3600)
        await nodes.linked(["dc1", "dc3"], ["dc2"])
        await trio.sleep(SMALL_S)
        (problem,) = await node.report.healthy()
        assert "entries that dc1, dc2 had when this node started" in problem
        nodes.rejoin("dc2")
        gate.open.set()
        await until(lambda: is_whole(node))
        await nodes.converged()


@pytest.mark.parametrize("is_wiped", [False, True])
async def test_node_does_not_wait_for_entries_that_only_a_stopped_peer_had(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate, *, is_wiped: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        nodes.waits_when_new = True
        await nodes["dc1"].save("before")
        await nodes.converged()
        await nodes.stop("dc3")
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        await nodes["dc1"].save("alone")
        if is_wiped:
            nodes.erase("dc3")
        gate.shut()
        nodes.network.mend(("dc1", "dc3"))
        await nodes.start("dc3")
        node = nodes["dc3"]
        await until(lambda: {link.sid for link in node.coordinator.connections.links} == {"dc1", "dc2"})
        await trio.sleep(SMALL_S)
        assert await node.report.healthy()
        await nodes.stop("dc1")
        gate.open.set()
        await trio.sleep(TIMEOUT_S / 2)
        (problem,) = await node.report.healthy()
        assert "lacks 1 entries that dc1, dc2 had when this node started" in problem
        await trio.sleep(TIMEOUT_S)
        assert not await node.report.healthy()
        assert node.coordinator.admission.begun.is_set()
        assert list((await node.bodies()).values()) == ["before"]


@pytest.mark.long
async def test_wrong_number_in_a_log_does_not_block_readiness_for_ever(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        rest = keep_busy(monkeypatch, (await nodes["dc1"].inbox("ann")).mailbox_id, "dc3")
        node = await come_back(nodes, gate)
        hear_of_dc1(nodes, 1_000_000)
        await trio.sleep(2 * timing.READINESS_COMPARE_EVERY_S)
        assert not is_whole(node), "the mail that came while the node was away is missing"
        rest()
        gate.open.set()
        await nodes.converged()
        assert not is_whole(node)
        for number in range(2 * int(timing.READINESS_COMPARE_EVERY_S)):
            await nodes["dc1"].save(f"goes on {number}", user="ann")
            await trio.sleep(1)
        assert is_whole(node)


async def test_new_log_of_a_peer_replaces_its_previous_one(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
    async with cluster_with_mail(tmp_path, autojump_clock) as nodes:
        node, origin = await come_back(nodes, gate), nodes["dc1"].store.origin
        hear_of_dc1(nodes, 1_000_000)
        (problem,) = await node.report.healthy()
        lacking = 1_000_000 - node.store.context[origin]
        assert f"lacks {lacking} entries that" in problem
        hear_of_dc1(nodes, nodes["dc1"].store.context[origin])
        gate.open.set()
        await nodes.converged()
        await trio.sleep(SMALL_S)
        assert is_whole(node)
