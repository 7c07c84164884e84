"""SYNC: learning exactly what another node shows, at a cost that grows with the differences."""

import sqlite3
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Command, Content, Ranges, RefusalCode, Refused, Reply, Rows, Snapshot, SyncMailbox
from protocol.values import Dot, UidSet
from replicator.errors import UnavailableError
from replicator.mail.mailstore import INBOX
from replicator.replication.convergence import sync_client, sync_server
from replicator.replication.convergence.fork_merge import ForkMerger
from replicator.replication.convergence.reconciliation import Reconciliation
from replicator.replication.links.link import PeerLink
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import chain as chains
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import forks
from replicator.store.log.forks import merging
from replicator.store.log.sequencing import sequencer
from resync.entry import tree_id
from resync.state import MailboxState
from tests.effort import examples, first
from tests.replication.cluster import USER, Node, cluster
from tests.replication.idle_parts import stop_the_log

TREE = MailboxKey(USER, tree_id(USER), 0)
ROW_2 = "SELECT * FROM by_uid WHERE uid = 2 AND mailbox = ?"


async def inbox(node: Node) -> MailboxKey:
    folder = await node.mail.folder(USER, INBOX)
    return MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)


async def shown(node: Node, key: MailboxKey) -> object:
    """Return the head and the state of the mailbox."""

    nobody = forks.Branch(Dot("of.nobody", 1), b"", MailboxState())

    def read(reader: sqlite3.Connection) -> object:
        return merging._shown(reader, key, nobody, chains.load(reader, key.mailbox_id))

    return await node.store.read(read)


async def learned(node: Node, sid: str, key: MailboxKey) -> object:
    found = await sync_client.learn(node.store, node.coordinator.mastership, sid, key, with_rows=True)
    return None if found is None else (found.theirs.head, found.state())


def put_back(tx: Transaction, row: tuple[object, ...]) -> None:
    tx.connection.execute(f"REPLACE INTO by_uid VALUES ({','.join('?' * len(row))})", row)


@pytest.fixture
def no_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def join_nothing(_self: ForkMerger | Reconciliation, _key: MailboxKey) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(ForkMerger, "join_branches", join_nothing)
    monkeypatch.setattr(Reconciliation, "catch_up", join_nothing)


@pytest.mark.usefixtures("no_healing")
@pytest.mark.parametrize("answer_bytes", first(2, [sync_server.ANSWER_BYTES, 1, 1000]))
async def test_each_side_of_a_fork_learns_what_the_other_shows(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, answer_bytes: int
) -> None:
    monkeypatch.setattr(sync_server, "ANSWER_BYTES", answer_bytes)
    async with cluster(tmp_path, autojump_clock) as nodes:
        one, other = nodes["dc1"], nodes["dc3"]
        for number in range(60):
            await one.save(f"common {number}")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await one.save("at dc1")
        await one.flag(3, 4)
        await one.mail.create_folder(USER, "Work")
        await other.expunge(4, 5)
        await other.save("at dc3")
        await other.mail.subscribe(USER, "News", subscribed=True)
        nodes.network.mend(("dc1", "dc2"))  # dc1 reaches dc3 only through dc2
        await nodes.linked()
        for key in (await inbox(one), TREE):
            assert await shown(one, key) != await shown(other, key)
            assert await learned(one, "dc3", key) == await shown(other, key)
            assert await learned(other, "dc1", key) == await shown(one, key)
        stranger = MailboxKey(USER, b"m" * 16, 7)
        assert await learned(one, "dc3", stranger) is None
        nodes.rejoin("dc1")


@pytest.mark.usefixtures("no_healing")
async def test_mailbox_that_changes_during_sync_is_learned_as_it_is_at_the_end(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("common")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        await one.save("at dc1")
        for number in range(40):
            await other.save(f"{number}")
        nodes.rejoin("dc1")
        await nodes.linked()
        key = await inbox(other)
        ask, changed = PeerLink.request, 0

        async def request(self: PeerLink, command: Command | Callable[[PeerLink], Command]) -> Reply:
            nonlocal changed
            if isinstance(command, Rows) and changed < 2:
                changed += 1
                await other.store.write(
                    lambda tx: sequencer.store(tx, key, UidSet.of([changed + 1]), added=["a"], removed=[])
                )
            return await ask(self, command)

        monkeypatch.setattr(PeerLink, "request", request)
        found = await learned(one, "dc2", key)
        assert changed == 2
        assert found == await shown(other, key)


async def test_number_of_snapshots_is_limited(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_server, "MAX_SNAPSHOTS", 2)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc2"].save("text")
        await nodes.converged()
        link = nodes["dc1"].coordinator.connections.link("dc2")
        assert link is not None
        key = await inbox(nodes["dc2"])
        taken = [await link.request(lambda link: SyncMailbox(link.number(key))) for _ in range(3)]
        numbers = [reply.number for reply in taken if isinstance(reply, Snapshot)]
        replies = [await link.request(Ranges(number, ("",))) for number in numbers]
        assert isinstance(replies[0], Refused)
        assert replies[0].code == RefusalCode.TOO_OLD
        assert all(isinstance(reply, Content) for reply in replies[1:])


async def test_equal_nodes_need_few_bytes_to_find_that_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(100):
            await nodes["dc1"].save("text", user=f"user{number}")
        await nodes.converged()
        one = nodes["dc1"]
        before = received(one)
        assert await sync_client.differing_chains(one.store, one.coordinator.mastership, "dc2") == []
        assert received(one) - before < 500  # pings included; the number of mailboxes does not matter


@pytest.mark.long
async def test_cost_of_sync_follows_from_the_number_of_differences(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        key = await inbox(one)
        step = examples(200, 400)
        await one.store.write(partial(_save_many, key=key, count=step * 25 // 2))
        await nodes.converged()
        stop_the_log(monkeypatch)
        await other.flag(*range(step // 2, step * 10, step))
        await other.expunge(*range(1, step * 10, step))
        before = received(one)
        learned_now = await sync_client.learn(one.store, one.coordinator.mastership, "dc2", key)
        assert received(one) - before < 65536
        assert learned_now is not None
        assert len(learned_now.items) == len(learned_now.gone) == 10


@pytest.mark.parametrize("lie", [1000, 1 << 62])
@pytest.mark.parametrize("is_ours", [True, False])
async def test_impossible_log_of_a_peer_is_refused(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lie: int, *, is_ours: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        one, other = nodes["dc1"], nodes["dc2"]
        origin = one.store.origin if is_ours else other.store.origin
        monkeypatch.setattr(other.store, "collected", {origin: lie})
        if lie == 1000 and not is_ours:
            async with sync_client.node_difference(one.store, one.coordinator.mastership, "dc2") as found:
                assert found.collected == {origin: lie}
            return
        with pytest.raises(UnavailableError, match="reports an impossible log"):
            await sync_client.differing_chains(one.store, one.coordinator.mastership, "dc2")


def received(node: Node) -> int:
    link = node.coordinator.connections.link("dc2")
    assert link is not None
    return link._received_bytes


def _save_many(tx: Transaction, key: MailboxKey, count: int) -> None:
    body = StoredBody.of(b"text")
    for number in range(count):
        sequencer.save(tx, key, body, guid=blake2b(b"%d" % number, digest_size=16).digest(), received_ms=1, flags=())


async def test_damaged_row_of_a_peer_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        for number in range(3):
            await one.save(f"text {number}")
        await nodes.converged()
        key = await inbox(one)
        alter = "UPDATE by_uid SET size_bytes = 7 WHERE uid = 2 AND mailbox = ?"
        await one.store.write(lambda tx: tx.connection.execute(alter, (key.mailbox_id,)).rowcount)
        drop = "DELETE FROM by_uid WHERE uid = 2 AND mailbox = ?"
        (before,) = await other.store.read(lambda reader: reader.execute(ROW_2, (key.mailbox_id,)).fetchall())
        await other.store.write(lambda tx: tx.connection.execute(drop, (key.mailbox_id,)).rowcount)
        for anew in (False, True):
            with pytest.raises(sync_client.DamagedError, match="run `replicator check"):
                await sync_client.learn(other.store, other.coordinator.mastership, "dc1", key, anew=anew)
        for node in nodes.all():
            await node.store.write(lambda tx: put_back(tx, before))
