"""A state ahead of the log reaches all nodes, although the node that numbered it has lost it."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.convergence.anti_entropy import AntiEntropy
from replicator.replication.convergence.fork_merge import ForkMerger
from replicator.replication.convergence.reconciliation import Outcome
from replicator.replication.convergence.state_transfer import StateTransfer
from replicator.replication.links.link import PeerLink
from replicator.replication.log.sender import Sender
from replicator.replication.writes import head_exchange
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store
from resync.entry import tree_id
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.log.truncating import forget_log

TREE = MailboxKey(USER, tree_id(USER), 0)


async def wait_for_ever(*_: object) -> bool:
    await trio.sleep_forever()
    return True


async def key_of(node: Node, name: str) -> MailboxKey:
    folder = await node.mail.folder(USER, name)
    return MailboxKey(folder.user, folder.mailbox_id, folder.uidvalidity)


@asynccontextmanager
async def ahead_of_the_log(tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Yield a cluster in which dc2 alone shows a folder and a mail, which dc1 numbered before it lost its disk.

    dc1 is down, and has an older copy of its disk.
    """
    async with cluster(tmp_path, clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await nodes.stop("dc1")
        shutil.copytree(nodes.data("dc1"), tmp_path / "backup")
        await nodes.start("dc1")
        await nodes.linked()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].save("lost", "Work")
        with monkeypatch.context() as patch:
            patch.setattr(Sender, "_ship", wait_for_ever)
            nodes.rejoin("dc1")
            await nodes.linked()
            reconcile = nodes["dc2"].coordinator.reconciliation.reconcile
            assert await reconcile(TREE, "dc1") is Outcome.ADOPTED
            assert await reconcile(await key_of(nodes["dc1"], "Work"), "dc1") is Outcome.ADOPTED
            assert await nodes["dc2"].bodies("Work") == {1: "lost"}
            await nodes.stop("dc1")
            shutil.rmtree(nodes.data("dc1"))
            shutil.copytree(tmp_path / "backup", nodes.data("dc1"))
        yield nodes


@pytest.mark.long
async def test_all_nodes_get_a_state_ahead_of_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ahead_of_the_log(tmp_path, autojump_clock, monkeypatch) as nodes:
        await nodes.start("dc1")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert await node.bodies("Work") == {1: "lost"}


async def test_starting_node_shows_what_a_peer_shows_ahead_of_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ahead_of_the_log(tmp_path, autojump_clock, monkeypatch) as nodes:
        await nodes.start("dc1")
        assert await nodes["dc1"].bodies("Work") == {1: "lost"}


async def test_what_a_node_counts_as_received_and_never_got_is_found(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A false answer in a state transfer has told the node that there was nothing else to take over."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc1"].save("missed", user="carol")
        passed = dict(nodes["dc1"].store.context)
        await nodes["dc3"].store.write(lambda tx: tx.begin_log_after(passed))
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert await node.bodies(user="carol") == {1: "missed"}


@pytest.mark.long
async def test_nodes_compare_after_masters_have_joined_what_logs_have_brought(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [f"user{number}" for number in range(16)]
    join, compare = ForkMerger.join_branches, AntiEntropy.compare
    turn, waiting = trio.Lock(), list[int]()

    async def join_in_turn(self: ForkMerger, key: MailboxKey) -> None:
        async with turn:
            await trio.sleep(timing.ANTI_ENTROPY_LOOK_EVERY_S / 2)
            await join(self, key)

    async def note(self: AntiEntropy, sid: str) -> bool:
        waiting.append(len(self._store.waiting))
        return await compare(self, sid)

    monkeypatch.setattr(ForkMerger, "join_branches", join_in_turn)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        for user in users:
            await nodes["dc1"].save("first", user=user)
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        for user in users:
            for node in nodes.all():
                await node.save(f"at {node.sid}", user=user)
        monkeypatch.setattr(AntiEntropy, "compare", note)
        nodes.rejoin("dc2")
        await nodes.linked()
        healed = trio.current_time()
        await nodes.converged()
        assert trio.current_time() - healed > timing.ANTI_ENTROPY_QUIET_S + timing.ANTI_ENTROPY_LOOK_EVERY_S
        await until(lambda: len(waiting) >= 2)
    assert not any(waiting)


async def test_peer_with_nothing_is_asked_about_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new node lacks every mailbox; its peers could not take over any of them from it."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        for number in range(5):
            await nodes["dc1"].save("text", user=f"user{number}")
        await forget_log(nodes["dc1"])
        asked: list[MailboxKey] = []
        look = head_exchange.is_beyond_logs

        async def is_beyond_logs(store: Store, link: PeerLink | None, sid: str, key: MailboxKey, mine: Chain) -> bool:
            asked.append(key)
            return await look(store, link, sid, key, mine)

        monkeypatch.setattr(head_exchange, "is_beyond_logs", is_beyond_logs)
        with monkeypatch.context() as patch:
            patch.setattr(StateTransfer, "_take_over", wait_for_ever)
            await nodes.start("dc2")
            await nodes.linked()
            assert await nodes["dc1"].coordinator.anti_entropy.compare("dc2")
            assert asked == []
        await nodes.stop("dc2")
        await nodes.start("dc2")
        await nodes.linked()
