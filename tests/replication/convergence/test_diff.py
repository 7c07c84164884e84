"""Differences between two nodes that are in use: those that last count, entries on their way do not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Command, Reply, SyncEnd
from protocol.values import UidSet
from replicator.replication import timing
from replicator.replication.convergence import diff
from replicator.replication.convergence.diff import LOOKS, NodeComparison
from replicator.replication.links.link import PeerLink
from replicator.store.db.queries import MailboxKey
from replicator.store.log.sequencing import sequencer
from resync.differing import DifferenceKind
from tests.replication.cluster import Cluster, Node, cluster
from tests.replication.idle_parts import never, stop_the_log

pytestmark = pytest.mark.usefixtures("no_healing")


@pytest.fixture
def no_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.replication.convergence.fork_scheduler.ForkScheduler._work", never)


async def make_differ(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> MailboxKey:
    """Give dc2 a message that dc1 lacks, and stop the log."""
    for number in range(3):
        await nodes["dc1"].save(f"common {number}")
    await nodes.converged()
    nodes.isolate("dc1")
    await nodes.linked(["dc1"], ["dc2"])
    await nodes["dc2"].save("at dc2")
    stop_the_log(monkeypatch)
    nodes.rejoin("dc1")
    await nodes.linked()
    return MailboxKey.of(await nodes["dc1"].view())


async def flag(node: Node, key: MailboxKey, name: str) -> None:
    await node.store.write(lambda tx: sequencer.store(tx, key, UidSet.of([1]), added=[name], removed=[]))


async def keep_writing(node: Node, key: MailboxKey, written: list[str]) -> None:
    while True:
        await trio.sleep(timing.DIFF_LOOK_AGAIN_S / 2)
        written.append(f"f{len(written)}")
        await flag(node, key, written[-1])


async def standing_differences(node: Node, key: MailboxKey) -> NodeComparison:
    return await diff.standing(node.store, node.coordinator.mastership, "dc2", key)


async def test_lasting_difference_is_looked_at_twice(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        key = await make_differ(nodes, monkeypatch)
        before = trio.current_time()
        assert (await standing_differences(nodes["dc1"], key)).by_kind == {DifferenceKind.MISSING_HERE: 1}
        assert trio.current_time() - before == pytest.approx(timing.DIFF_LOOK_AGAIN_S, abs=0.1)


async def test_message_that_arrives_between_looks_is_no_difference(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, trio.open_nursery() as nursery:
        key = await make_differ(nodes, monkeypatch)

        async def arrive() -> None:
            await trio.sleep(timing.DIFF_LOOK_AGAIN_S / 2)
            await nodes["dc1"].coordinator.reconciliation.reconcile(key, "dc2")

        nursery.start_soon(arrive)
        assert (await standing_differences(nodes["dc1"], key)).by_kind == {}


async def test_only_differences_of_every_look_count_in_a_busy_mailbox(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, trio.open_nursery() as nursery:
        key = await make_differ(nodes, monkeypatch)
        written: list[str] = []
        nursery.start_soon(keep_writing, nodes["dc2"], key, written)
        found = await standing_differences(nodes["dc1"], key)
        assert len(written) >= LOOKS - 1
        # At the first look the flags were equal, and the message was missing.
        assert found.by_kind == {DifferenceKind.MISSING_HERE: 1}
        nursery.cancel_scope.cancel()


async def test_damage_between_looks_is_reported(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, trio.open_nursery() as nursery:
        key = await make_differ(nodes, monkeypatch)

        async def set_messages(count: int) -> None:
            """Damage the counter, as a failing disk might."""
            update = "UPDATE chain SET messages = ? WHERE id = ?"
            await nodes["dc1"].store.write(lambda tx: tx.connection.execute(update, (count, key.mailbox_id)).rowcount)

        async def damage_it() -> None:
            await trio.sleep(timing.DIFF_LOOK_AGAIN_S * (LOOKS - 1.5))
            await set_messages(7)

        nursery.start_soon(keep_writing, nodes["dc2"], key, [])
        nursery.start_soon(damage_it)
        found = await standing_differences(nodes["dc1"], key)
        assert found.by_kind[DifferenceKind.DAMAGE]
        assert "run `replicator check --repair` here" in str(found.damage)
        await set_messages(3)
        nursery.cancel_scope.cancel()


async def test_compared_rows_belong_to_the_reported_head(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node's mailbox changes after the other node has answered, and before this node reads its own rows."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        key = await make_differ(nodes, monkeypatch)
        one = nodes["dc1"]
        ask, asked = PeerLink.request, 0

        async def request(self: PeerLink, command: Command | Callable[[PeerLink], Command]) -> Reply:
            nonlocal asked
            if isinstance(command, SyncEnd):
                asked += 1
                if asked == 1:
                    await one.store.write(lambda tx: sequencer.store(tx, key, UidSet.of([2]), added=["a"], removed=[]))
            return await ask(self, command)

        monkeypatch.setattr(PeerLink, "request", request)
        found = await diff.look(one.store, one.coordinator.mastership, "dc2", key)
        assert asked == 2
        assert found.ours.head == (await one.view()).head
        assert found.by_kind == {DifferenceKind.MISSING_HERE: 1, DifferenceKind.FLAGS: 1}
