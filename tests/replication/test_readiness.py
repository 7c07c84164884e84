"""What a node shows that has just started: nothing older, and no less, than what the cluster had when it came."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.errors import NotReadyError
from replicator.replication.readiness import PATIENCE_S
from replicator.replication.receiving import Receiver
from replicator.replication.wire import Announced, Arrived
from tests.replication.cluster import TIMEOUT_S, Cluster, Node, cluster, until

MAILS = 20
SMALL_S = 0.5  # of a start


class Gate:
    """Keeps the log of its peers from dc3."""

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
async def with_mail(tmp_path: Path, clock: MockClock) -> AsyncIterator[Cluster]:
    """A cluster in which dc3 has just been stopped."""
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


async def test_a_wiped_node_shows_a_mailbox_whole_or_not_at_all(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        nodes.erase("dc3")
        gate.shut()
        await nodes.start("dc3")
        await nodes.linked()
        node, expected = nodes["dc3"], await nodes["dc1"].texts(user="ann")
        assert await node.texts(user="ann") == expected
        assert await node.inbox("ann") == await nodes["dc1"].inbox("ann")
        (problem,) = await node.report.healthy()
        assert f"yet to catch up with what dc1, dc2 had when it started: {2 * MAILS + 2} entries" in problem
        nodes.isolate("dc3")
        await until(lambda: not node.coordinator.connections.links)
        assert await node.texts(user="ann") == expected
        with pytest.raises(NotReadyError, match="yet to catch up"):
            await node.texts(user="bob")
        await trio.sleep(3 * TIMEOUT_S)
        with pytest.raises(NotReadyError):
            await node.save("too early", user="bob")
        await nodes.stop("dc3")
        await nodes.start("dc3")  # it has not begun: it is as new as before
        await trio.sleep(3 * TIMEOUT_S)
        node = nodes["dc3"]
        with pytest.raises(NotReadyError, match="this node is new"):
            await node.texts(user="ann")
        nodes.rejoin("dc3")
        gate.open.set()
        await nodes.linked()
        await until(lambda: is_whole(node))
        assert not await node.report.healthy()
        assert await node.texts(user="bob") == await nodes["dc1"].texts(user="bob")
        await nodes.converged()


async def test_a_node_that_was_away_shows_nothing_old(tmp_path: Path, autojump_clock: MockClock, gate: Gate) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        for number in range(MAILS):
            await nodes["dc1"].save(f"away {number}", user="ann")
        gate.shut()
        await nodes.start("dc3")
        node = nodes["dc3"]
        assert await node.texts(user="ann") == await nodes["dc1"].texts(user="ann")
        assert not is_whole(node)
        assert await node.save("goes on", user="ann") == 2 * MAILS + 1
        gate.open.set()
        await until(lambda: is_whole(node))
        await nodes.linked()
        await nodes.converged()


async def test_a_node_that_was_away_for_a_moment_serves_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        began = trio.current_time()
        await nodes.start("dc3")
        assert len(await nodes["dc3"].texts(user="ann")) == MAILS
        assert trio.current_time() < began + TIMEOUT_S / 2 + SMALL_S, "its peers dial every other second"
        await nodes.linked()
        assert is_whole(nodes["dc3"])


async def test_a_node_that_reaches_nobody_serves_what_it_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        began = trio.current_time()
        await nodes.start("dc3")
        node = nodes["dc3"]
        (problem,) = await node.report.healthy()
        assert "waits to hear what the others have" in problem
        assert len(await node.texts(user="ann")) == MAILS
        assert trio.current_time() < began + TIMEOUT_S + SMALL_S
        assert not await node.report.healthy()
        nodes.rejoin("dc3")
        await nodes.linked()


async def test_a_node_that_loses_its_peers_while_it_catches_up_goes_on_alone(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("away", user="ann")
        gate.shut()
        await nodes.start("dc3")
        await nodes.linked()
        nodes.isolate("dc3")
        await until(lambda: is_whole(nodes["dc3"]))
        assert len(await nodes["dc3"].texts(user="ann")) == MAILS
        gate.open.set()
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()


async def test_a_line_that_was_cut_and_is_back_keeps_nobody_waiting(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate
) -> None:
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
        assert list((await nodes["dc3"].texts()).values()) == ["before"]
        assert trio.current_time() == began
        assert not await nodes["dc3"].report.healthy()
        gate.open.set()
        await nodes.converged()


async def test_who_asks_for_a_mailbox_that_takes_long_is_told_so(
    tmp_path: Path, autojump_clock: MockClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_mail(tmp_path, autojump_clock) as nodes:
        nodes.erase("dc3")
        gate.shut()
        await nodes.start("dc3")
        await nodes.linked()
        node = nodes["dc3"]
        reconcile = node.coordinator.reconciler.reconcile

        async def slow(*arguments: object) -> object:
            await trio.sleep(PATIENCE_S)
            return await reconcile(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(node.coordinator.reconciler, "reconcile", slow)
        began = trio.current_time()
        with pytest.raises(NotReadyError):
            await node.mail.folders("ann")
        assert trio.current_time() < began + PATIENCE_S + SMALL_S
        await trio.sleep(2 * PATIENCE_S)  # it has gone on meanwhile
        assert len(await node.mail.folders("ann")) == 1
        gate.open.set()
        await nodes.converged()
