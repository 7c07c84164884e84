"""Status, digests, health and metrics of a node."""

import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from string import ascii_uppercase

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.commands import Done, Mbox, Mismatch, Reply
from protocol.values import Dot
from replicator.config import MastershipConfig, Scope
from replicator.mail.mailstore import INBOX
from replicator.replication import timing
from replicator.replication.links.link import PeerLink
from replicator.replication.writes.head_exchange import compare
from replicator.status import LinkStatus
from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from tests.replication.cluster import EPOCH_MS, HEARTBEAT_S, USER, Node, cluster
from tests.replication.slow_disk import delay_writes
from tests.store.harness import connection_of

VERSION = version("mail-replicator")
CAPITALS = f"{ascii_uppercase}1"


async def link_to(node: Node, peer: str) -> LinkStatus:
    (link,) = [link for link in (await node.report.node_status()).links if link.peer == peer]
    return link


async def test_status_of_a_cluster_at_rest(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc2"].save("text")
        await nodes["dc2"].flag(1)
        await nodes.converged()
        await trio.sleep(2 * HEARTBEAT_S)
        statuses = [await node.report.node_status() for node in nodes.all()]
        assert len({status.digest for status in statuses}) == 1
        assert len({status.term for status in statuses}) == 1
        for node, status in zip(nodes.all(), statuses, strict=True):
            assert (status.sid, status.origin, status.cluster) == (node.sid, node.store.origin, "mail")
            assert status.component == ("dc1", "dc2", "dc3")
            assert status.root == "dc1"
            assert (status.mailboxes, status.log_entries, status.waiting_entries) == (1, 3, 0)
            assert status.mastered == (node.sid == "dc2")
            assert EPOCH_MS <= status.started_ms < EPOCH_MS + 1000
            for link in status.links:
                assert link.up
                assert link.error is None
                assert link.since_ms is not None
                assert (link.lag_entries, link.lag_bytes, link.lag_s) == (0, 0, 0)


async def test_own_entries_of_a_peer_do_not_count_as_its_lag(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc2"].save("text")
        await trio.testing.wait_all_tasks_blocked()
        assert (await link_to(nodes["dc1"], "dc2")).lag_entries == 0


async def test_lag_of_an_unreachable_peer_grows(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await trio.sleep(HEARTBEAT_S)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc1"].save("x" * 1000)
        await trio.sleep(100)
        await nodes["dc2"].save("y" * 1000)
        for sid in ("dc1", "dc2"):
            link = await link_to(nodes[sid], "dc3")
            assert not link.up
            assert link.error == "connection refused"
            assert link.lag_entries == 2
            assert 2000 < (link.lag_bytes or 0) < 2500
            assert link.lag_s == pytest.approx(100, abs=1)
            end = (await nodes[sid].report.node_status()).log_end
            assert link.has_until == end - 2
        near = await link_to(nodes["dc3"], "dc1")
        assert near.lag_entries == 0
        assert near.has_until == (await nodes["dc3"].report.node_status()).log_end
        assert (await link_to(nodes["dc1"], "dc2")).lag_entries == 0
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        await trio.sleep(2 * HEARTBEAT_S)
        assert (await link_to(nodes["dc1"], "dc3")).lag_entries == 0


async def test_lag_is_unknown_until_a_peer_is_heard_from(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        for sid in ("dc1", "dc2"):
            await nodes.stop(sid)
        await nodes.start("dc1")
        node = nodes["dc1"]
        lag = await link_to(node, "dc2")
        assert [lag.lag_entries, lag.lag_bytes, lag.lag_s, lag.has_until] == [None, None, None, None]
        await nodes.start("dc2")
        await nodes.linked()
        await nodes.converged()
        assert (await link_to(node, "dc2")).lag_entries == 0


async def test_round_trips_are_measured(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        nodes.network.road("dc2", "dc1").bytes_per_s = 1000
        await trio.sleep(3 * HEARTBEAT_S)
        round_trip_us = (await link_to(nodes["dc1"], "dc2")).round_trip_us
        assert round_trip_us is not None
        assert 1_000 < round_trip_us < 500_000
        nodes.network.road("dc2", "dc1").bytes_per_s = None
        await trio.sleep(3 * HEARTBEAT_S)
        assert (await link_to(nodes["dc1"], "dc2")).round_trip_us == 0


async def test_mailboxes_by_user_and_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await node.mail.folder("bob", "INBOX")
        for name in ("Work", "Archive", "Gone"):
            await node.mail.create_folder(USER, name)
        await node.mail.delete_folder(USER, "Gone")
        await node.save("text", "Work")
        await node.save("text", "Work")
        await node.flag(1, name="Work")
        shown = await node.report.mailboxes(None)
        assert [(box.user, box.name) for box in shown] == [(USER, "Archive"), (USER, "Work"), ("bob", "INBOX")]
        assert shown[1:2] == [box for box in await node.report.mailboxes(USER) if box.name == "Work"]
        work, empty = shown[1], shown[0]
        view = await node.view("Work")
        assert (work.messages, work.unseen, work.size_bytes, work.uidnext) == (2, 1, 8, 3)
        assert (work.highestmodseq, work.uidvalidity) == (view.highestmodseq, view.uidvalidity)
        assert bytes.fromhex(work.mailbox_id) == view.mailbox_id
        assert work.head == f"{node.store.origin} {node.store.context[node.store.origin]}"
        assert work.master == "dc1"
        assert (empty.messages, empty.uidnext, empty.head) == (0, 1, None)
        await nodes.converged()
        assert [box.digest for box in await nodes["dc2"].report.mailboxes(None)] == [box.digest for box in shown]


async def inbox_digest(node: Node) -> str:
    (inbox,) = await node.report.mailboxes(USER)
    return inbox.digest


async def answer_to_mbox(node: Node, other: Node, link: PeerLink) -> Reply:
    """Return the node's reply to the other node's MBOX for INBOX."""
    view = await other.view()
    theirs = await other.store.read(partial(chains.load, chain_id=view.mailbox_id))
    assert theirs is not None
    mbox = Mbox(
        1, USER, INBOX, theirs.id, view.uidvalidity, theirs.uidnext, theirs.messages, theirs.highestmodseq,
        theirs.head, theirs.digest(),
    )  # fmt: skip
    return await compare(node.store, node.coordinator.mastership, link, mbox, lambda _: None)


def link_between(node: Node, other: Node) -> PeerLink:
    link = node.coordinator.connections.link(other.sid)
    assert link is not None
    return link


async def save_and_expunge(node: Node) -> None:
    await node.expunge(await node.save("more"))


CHANGES: dict[str, Callable[[Node], Awaitable[object]]] = {
    "mail": lambda node: node.save("more"),
    "flag": lambda node: node.flag(1, added=["\\Flagged"]),
    "expunge": lambda node: node.expunge(1),
    "mail that is expunged at once": save_and_expunge,
}


@pytest.mark.parametrize("change", CHANGES)
async def test_digests_are_equal_while_nodes_show_the_same_and_only_then(
    tmp_path: Path, autojump_clock: MockClock, change: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, other = nodes.all()
        await one.save("text")
        await nodes.converged()
        before, link = await inbox_digest(one), link_between(one, other)
        assert await inbox_digest(other) == before
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        await CHANGES[change](one)
        assert await inbox_digest(one) != await inbox_digest(other) == before
        assert (await one.report.node_status()).digest != (await other.report.node_status()).digest
        assert isinstance(await answer_to_mbox(one, other, link), Mismatch)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await nodes.converged()
        assert await inbox_digest(one) == await inbox_digest(other) != before
        assert (await one.report.node_status()).digest == (await other.report.node_status()).digest


def test_digest_covers_every_field_of_a_chain() -> None:
    chain = Chain(b"i" * 16, USER, 7, 3, 5, Dot("dc1.a", 5), {"dc1.a": 5}, 2, 1, 100, 1234)
    others = [
        replace(chain, uidnext=4),
        replace(chain, highestmodseq=6),
        replace(chain, head=Dot("dc1.a", 4)),
        replace(chain, context={"dc1.a": 5, "dc2.a": 1}),
        replace(chain, messages=3),
        replace(chain, fingerprint=1235),
    ]
    assert len({chain.digest(), *(other.digest() for other in others)}) == 1 + len(others)


async def test_digest_covers_uidvalidity(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("text")
        (before,) = await node.report.mailboxes(USER)
        await node.store.write(lambda tx: tx.connection.execute("UPDATE folder SET uidvalidity = uidvalidity + 1"))
        (after,) = await node.report.mailboxes(USER)
        assert after.digest != before.digest
        assert after.uidvalidity == before.uidvalidity + 1
        await node.store.write(lambda tx: tx.connection.execute("UPDATE folder SET uidvalidity = uidvalidity - 1"))
        assert await inbox_digest(node) == before.digest


async def test_digests_are_computed_without_reading_messages(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await node.save("text")
        await nodes.converged()
        tables: set[str | None] = set()

        def note(action: int, table: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ:
                tables.add(table)
            return sqlite3.SQLITE_OK

        for reader in node.store._readers._idle:
            reader.set_authorizer(note)
        digest = await inbox_digest(node)
        assert await answer_to_mbox(node, nodes["dc2"], link_between(node, nodes["dc2"])) == Done()
        await node.report.node_status()
        for reader in node.store._readers._idle:
            reader.set_authorizer(None)
        assert digest == await inbox_digest(nodes["dc2"])
        assert "chain" in tables
        assert not tables & {"by_uid", "by_guid", "content"}


async def test_healthy_while_the_database_answers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        assert await nodes["dc1"].report.healthy() == []
        report = nodes["dc1"].report
    await trio.sleep(timing.NODE_STATUS_TRY_EVERY_S)
    # The database is closed now.
    (problem,) = await report.healthy()
    assert "the database does not answer" in problem


async def test_not_healthy_while_the_disk_is_full(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node, connection = nodes["dc1"], connection_of(nodes["dc1"].store)
        await node.save("text")
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        assert await node.report.healthy() == ["changes are refused: the disk is full; nothing was stored"]
        connection.execute("PRAGMA max_page_count = 1000000")
        await trio.sleep(timing.NODE_STATUS_RETRY_EVERY_S)
        assert await node.report.healthy() == []


async def test_not_healthy_while_the_disk_hangs(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node, goes_on = nodes["dc1"], trio.Event()

        async def hang() -> None:
            with trio.move_on_after(60):
                await goes_on.wait()

        delay_writes(node, hang)
        assert await node.report.healthy() == ["the disk has not completed a write for 5 s"]
        goes_on.set()
        await trio.sleep(timing.NODE_STATUS_RETRY_EVERY_S)
        assert await node.report.healthy() == []


@pytest.mark.parametrize("is_broken", [False, True])
async def test_all_who_ask_for_health_share_one_trial_of_the_disk(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_broken: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node, trials = nodes["dc1"], 0
        assert await node.report.healthy() == []
        await trio.sleep(timing.NODE_STATUS_TRY_EVERY_S)
        attachments = node.config.node.data / "attachments"
        tried = node.store.attachments.try_to_write

        def counted() -> None:
            nonlocal trials
            trials += 1
            tried()

        monkeypatch.setattr(node.store.attachments, "try_to_write", counted)
        if is_broken:
            shutil.rmtree(attachments)
            attachments.write_bytes(b"no directory")
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(node.report.healthy)
            await trio.sleep(timing.NODE_STATUS_RETRY_EVERY_S / 10)
        assert trials == 1
        assert bool(await node.report.healthy()) == is_broken


async def test_changes_since_the_last_checkpoint_are_reported(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("one")
        assert await node.report.has_unsaved()
        await node.coordinator.log_truncation.checkpoint_now()
        assert not await node.report.has_unsaved()
        await node.mail.create_folder(USER, "Work")
        assert await node.report.has_unsaved()


async def test_status_looks_at_no_mailbox_that_nobody_uses_once_all_are_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("text")
        await node.report.node_status()
        read: set[tuple[str | None, str | None]] = set()

        def note(action: int, table: str | None, column: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ:
                read.add((table, column))
            return sqlite3.SQLITE_OK

        for connection in (*node.store._readers._idle, node.store._connection):
            connection.set_authorizer(note)
        await node.report.node_status()
        for connection in (*node.store._readers._idle, node.store._connection):
            connection.set_authorizer(None)
        assert ("log", "applied") in read
        assert ("chain", "fingerprint") not in read


@pytest.mark.parametrize("scope", Scope)
async def test_mastered_mailboxes_are_counted_whatever_scope_they_have(
    tmp_path: Path, autojump_clock: MockClock, scope: Scope
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, mastership=MastershipConfig(scope=scope)) as nodes:
        await nodes["dc2"].save("text")
        await nodes.converged()
        assert [(await node.report.node_status()).mastered for node in nodes.all()] == [0, 1]
