"""A node with a damaged database gets a new one from its peers, and salvages what only the old one has."""

import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.errors import leaves
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.handshake import REBUILDING
from replicator.replication.rebuild.rebuilder import Progress, Rebuild, RebuildError, Rebuilt
from replicator.store.bodies.body_rows import lacking_count
from replicator.store.db import queries, schema
from replicator.store.db.queries import MailboxKey
from replicator.store.repair import damaged_database
from replicator.store.repair.database_swap import replacement_of, take_place
from replicator.store.store import Store
from tests.effort import first
from tests.replication.bodies.large_messages import bodies, check_holders, contents, keep_apart, message, save
from tests.replication.cluster import USER, Cluster, cluster, until
from tests.replication.log.truncating import forget_log
from tests.replication.tasks.planted_damage import alter_history
from tests.replication.tasks.running import check_at, scrub
from tests.store.consistency import check_file
from tests.store.damaging import leaves_of, overwrite, zero_middle


def ignore(_: Progress) -> None:
    """Take a progress report, and show it to nobody."""


@asynccontextmanager
async def rebuilding(nodes: Cluster, sid: str, tell: Callable[[Progress], None] = ignore) -> AsyncIterator[Rebuild]:
    """Run the parts of a node that `rebuild_node` runs."""
    config, environment = nodes.config(sid), nodes.environment(sid)
    new = replacement_of(database(nodes, sid))
    async with Store.open(new, environment.new_origin(sid), environment) as store:
        coordinator = Coordinator(
            config, store, environment, lambda peer: nodes.dial(sid, peer.id), capabilities=(REBUILDING,)
        )
        nodes.network.accepting[sid] = coordinator.connections.accept
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.run)
                yield Rebuild(store, coordinator, environment, tell)
                nursery.cancel_scope.cancel()
        finally:
            del nodes.network.accepting[sid]
            nodes.network.end_connections(sid)
    check_file(new)


async def rebuild_database(nodes: Cluster, sid: str, tell: Callable[[Progress], None] = ignore) -> Rebuilt:
    with damaged_database.opened(database(nodes, sid)) as damaged:
        async with rebuilding(nodes, sid, tell) as rebuild:
            return await rebuild.run(damaged)


async def rebuild_and_start(nodes: Cluster, sid: str) -> Rebuilt:
    """Rebuild the node's database, and start the node with it."""
    found = await rebuild_database(nodes, sid)
    aside = take_place(database(nodes, sid), "date")
    assert aside is not None
    assert aside.exists()
    await nodes.start(sid)
    await nodes.linked()
    await nodes.converged()
    return found


async def rebuild_error(nodes: Cluster, sid: str) -> str:
    with pytest.raises((RebuildError, BaseExceptionGroup)) as caught:
        await rebuild_database(nodes, sid)
    error = caught.value
    [only] = leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    assert isinstance(only, RebuildError)
    return str(only)


def database(nodes: Cluster, sid: str) -> Path:
    return nodes.data(sid) / "node.db"


async def fill(nodes: Cluster) -> None:
    """Fill several pages of each table, with entries of two masters."""
    for number in range(60):
        await nodes["dc1"].save(f"{number} " + "text" * 20)
        await nodes["dc2"].save(f"hers {number}", user="bob")
    await nodes["dc1"].mail.create_folder(USER, "Work")
    await nodes["dc1"].save("at work", "Work")
    await nodes["dc2"].expunge(3, 4)
    await nodes["dc1"].flag(*range(10, 30))
    await nodes.converged()


@pytest.mark.parametrize("tree", first(1, ["by_uid", "log", "content", "by_guid", "sqlite_autoindex_content_1"]))
@pytest.mark.parametrize("collected", [False, True], ids=["log whole", "log collected"])
async def test_damaged_node_is_rebuilt_from_its_peers(
    tmp_path: Path, autojump_clock: MockClock, tree: str, *, collected: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        if collected:
            for node in nodes.all():
                await forget_log(node)
            await nodes["dc1"].save("in the log")
            await nodes.converged()
        await nodes.stop("dc3")
        await nodes["dc1"].save("while it was away")
        overwrite(database(nodes, "dc3"), leaves_of(database(nodes, "dc3"), tree)[0])
        said: list[Progress] = []
        found = await rebuild_database(nodes, "dc3", said.append)
        assert (found.is_whole, found.peers, found.salvaged_entries, found.lost_entries) == (True, ["dc1", "dc2"], 0, 0)
        assert (found.mailboxes, found.messages) == (3, 60 - 2 + 1 + 60 + 1 + collected)
        assert "rows of the damaged log" in {progress.what for progress in said}
        take_place(database(nodes, "dc3"), "date")
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        assert await nodes["dc3"].bodies() == await nodes["dc1"].bodies()
        assert not await nodes["dc3"].store.read(lacking_count)
        assert len(await nodes["dc3"].bodies(user="bob")) == 60
        assert await nodes["dc3"].save("afterwards") == await nodes["dc1"].save("and here") - 1


@pytest.mark.long
@pytest.mark.parametrize("collected", [False, True], ids=["log whole", "log collected"])
async def test_mail_that_only_the_damaged_database_has_is_kept(
    tmp_path: Path, autojump_clock: MockClock, *, collected: bool
) -> None:
    """Such mail was acknowledged while no other node could be reached."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        if collected:
            for node in nodes.all():
                await forget_log(node)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for number in range(30):
            await nodes["dc3"].save(f"alone {number} " + "text" * 50)
        await nodes["dc3"].mail.create_folder(USER, "Alone")
        await nodes["dc3"].save("in a folder", "Alone")
        if not collected:  # a branch whose first entries have left the log can be continued, but not merged
            await nodes["dc1"].save("meanwhile")
        await nodes.stop("dc3")
        nodes.rejoin("dc3")
        zero_middle(database(nodes, "dc3"), "by_uid")
        found = await rebuild_and_start(nodes, "dc3")
        assert (found.is_whole, found.salvaged_entries) == (True, 32)
        texts = set((await nodes["dc1"].bodies()).values())
        assert {f"alone {number} " + "text" * 50 for number in range(30)} < texts
        assert collected or "meanwhile" in texts
        assert await nodes["dc2"].bodies("Alone") == {1: "in a folder"}
        assert await nodes["dc3"].bodies() == await nodes["dc2"].bodies()


@pytest.mark.parametrize("altered", first(2, [None, 2, 19]), ids=first(2, ["as numbered", "early", "late"]))
async def test_entries_that_only_a_damaged_log_has_keep_their_histories(
    tmp_path: Path, autojump_clock: MockClock, altered: int | None
) -> None:
    """The other nodes have lost their disks, and the damaged node's log leads to all that it had, whichever history.

    `altered`: the last UID before the database altered the history of the head, which the next entry then named.
    """
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        alone = nodes["dc3"]
        key = MailboxKey.of(await alone.inbox())
        for uid in range(2, 21):
            assert await alone.save(f"alone {uid}") == uid
            if uid == altered:
                await alter_history(alone, key.mailbox_id)
        for sid in ("dc3", "dc2"):
            await nodes.stop(sid)
        nodes.rejoin("dc3")
        nodes.erase("dc2")
        overwrite(database(nodes, "dc3"), leaves_of(database(nodes, "dc3"), "by_uid")[0])
        found = await rebuild_database(nodes, "dc3")
        assert (found.is_whole, found.salvaged_entries, found.delivered_anew) == (True, 19, 0)
        assert (found.untaken_entries, found.waiting_entries) == (0, 0)
        take_place(database(nodes, "dc3"), "date")
        await nodes.stop("dc1")
        nodes.erase("dc1")
        await nodes.start()
        await nodes.linked()
        await nodes["dc2"].save("last")
        await nodes.converged()
        for node in nodes.all():
            assert list((await node.bodies()).values()) == ["first", *(f"alone {uid}" for uid in range(2, 21)), "last"]
            assert (await check_at(node)).damage == {}
            chain = await node.store.read(partial(queries.chain_or_empty, key=key))
            assert chain.head is not None
            entry = await node.store.read(partial(queries.entry_at, dot=chain.head))
            assert entry is not None
            assert chain.history == entry.history == entry.digest()


@pytest.mark.parametrize("rows_lost", first(1, [False, True]), ids=first(1, ["rows whole", "rows damaged"]))
async def test_mail_behind_a_gap_in_the_log_is_redelivered(
    tmp_path: Path, autojump_clock: MockClock, *, rows_lost: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        alone = nodes["dc3"]
        for number in range(20):
            await alone.save(f"alone {number}")
        await alone.flag(70, added=["\\Flagged"])
        await alone.expunge(79)
        await alone.mail.create_folder(USER, "Alone")
        await alone.save("in a folder", "Alone")
        kept = {message.guid: (message.received_ms, message.flags) for message in await alone.messages()}
        origin = alone.store.origin
        await nodes.stop("dc3")
        nodes.rejoin("dc3")
        path = database(nodes, "dc3")
        with schema.open_writer(path) as connection:
            where = "DELETE FROM log WHERE origin = ? AND seq = (SELECT seq - 20 FROM origin WHERE name = ?)"
            assert connection.execute(where, (origin, origin)).rowcount == 1
        connection.close()
        if rows_lost:
            for leaf in leaves_of(path, "by_uid"):
                overwrite(path, leaf)
        found = await rebuild_and_start(nodes, "dc3")
        assert not found.is_whole
        assert (found.lost_entries, found.untaken_entries, found.untaken_changes) == (21, 20, 3)
        assert (found.salvaged_entries, found.unreadable_rows, found.undelivered) == (3, 1, 0)
        lost = {"alone 3"} if rows_lost else {"alone 18"}  # counts as expunged, as far as can be known
        texts = [body for body in (await nodes["dc1"].bodies()).values() if body.startswith("alone")]
        assert len(texts) == len(set(texts)) == found.salvaged_entries + found.delivered_anew - 1
        assert set(texts) == {f"alone {number}" for number in range(20)} - lost
        assert await nodes["dc2"].bodies("Alone") == {1: "in a folder"}
        now = {message.guid: (message.received_ms, message.flags) for message in await nodes["dc1"].messages()}
        assert rows_lost or now == kept
        assert {guid: at for guid, (at, _) in now.items() if guid in kept}.items() <= {
            guid: at for guid, (at, _) in kept.items()
        }.items()


@pytest.mark.long
async def test_mail_behind_a_lost_entry_of_an_earlier_run_is_redelivered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc3"].save("before")
        first = nodes["dc3"].store.origin
        await nodes.stop("dc3")
        await nodes.start("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc3"].save("after")
        await nodes.stop("dc3")
        nodes.rejoin("dc3")
        with schema.open_writer(database(nodes, "dc3")) as connection:
            last = "DELETE FROM log WHERE origin = ? AND seq = (SELECT seq FROM origin WHERE name = ?)"
            assert connection.execute(last, (first, first)).rowcount == 1
        connection.close()
        found = await rebuild_and_start(nodes, "dc3")
        assert (found.lost_entries, found.untaken_entries, found.delivered_anew) == (2, 1, 2)
        assert (found.salvaged_entries, found.waiting_entries, found.is_whole) == (0, 0, False)
        assert {"before", "after"} < set((await nodes["dc1"].bodies()).values())


async def test_mail_is_redelivered_into_a_folder_deleted_meanwhile(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for number in range(3):
            await nodes["dc3"].save(f"alone {number}", "Work")
        await nodes["dc1"].mail.delete_folder(USER, "Work")
        origin = nodes["dc3"].store.origin
        await nodes.stop("dc3")
        nodes.rejoin("dc3")
        with schema.open_writer(database(nodes, "dc3")) as connection:
            assert connection.execute("DELETE FROM log WHERE origin = ? AND seq = 1", (origin,)).rowcount == 1
        connection.close()
        found = await rebuild_and_start(nodes, "dc3")
        assert (found.salvaged_entries, found.delivered_anew, found.undelivered) == (0, 3, 0)
        assert set((await nodes["dc2"].bodies("Work")).values()) == {f"alone {number}" for number in range(3)}


@pytest.mark.long
async def test_unreadable_rows_that_no_peer_has_are_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for number in range(60):
            await nodes["dc3"].save(f"alone {number} " + "text" * 50)
        await nodes.stop("dc3")
        nodes.rejoin("dc3")
        path = database(nodes, "dc3")
        for leaf in (leaves_of(path, "log")[-1], *leaves_of(path, "by_uid")):
            overwrite(path, leaf)
        found = await rebuild_and_start(nodes, "dc3")
        assert not found.is_whole
        assert (found.untaken_entries, found.delivered_anew) == (0, 0)
        assert found.lost_entries is not None
        assert (found.lost_entries > 0, found.salvaged_entries + found.lost_entries) == (True, 60)
        assert found.unreadable_rows == found.lost_entries
        alone = {body for body in (await nodes["dc1"].bodies()).values() if body.startswith("alone")}
        assert len(alone) == found.salvaged_entries


async def test_unreadable_file_is_reported_and_all_mail_of_peers_comes_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        await nodes.stop("dc3")
        overwrite(database(nodes, "dc3"), 1, b"\xa5" * schema.PAGE_BYTES)
        found = await rebuild_and_start(nodes, "dc3")
        assert (found.is_whole, found.lost_entries, found.salvaged_entries) == (False, None, 0)
        assert await nodes["dc3"].bodies() == await nodes["dc1"].bodies()


@pytest.mark.long
async def test_bodies_that_peers_lost_come_from_the_damaged_database(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        await nodes["dc1"].save("nowhere")
        await nodes.converged()
        for node in nodes.all():
            await forget_log(node)
        await nodes.stop("dc3")
        gone = "DELETE FROM content WHERE hash IN (SELECT content_hash FROM by_uid WHERE uid IN (7, 61))"
        for node in nodes.all():
            await node.store.write(lambda tx: tx.connection.execute(gone))
        with schema.open_writer(database(nodes, "dc3")) as connection:
            connection.execute("DELETE FROM content WHERE hash IN (SELECT content_hash FROM by_uid WHERE uid = 61)")
        connection.close()
        found = await rebuild_and_start(nodes, "dc3")
        assert [(finding.uid, finding.user) for finding in found.missing_texts] == [(61, USER)]
        assert not found.is_whole
        assert (await nodes["dc3"].body_of(7)).startswith("6 ")


@pytest.mark.long
@pytest.mark.parametrize("gap", [False, True], ids=["log whole", "log with a gap"])
async def test_attachments_stored_under_their_holders_names_are_found(
    tmp_path: Path, autojump_clock: MockClock, *, gap: bool
) -> None:
    alone, lost = (random.Random(number).randbytes(1_200_000) for number in (2, 3))
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], message(1, lost))  # later only dc3 has the attachment
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await save(nodes["dc3"], b"small")
        await save(nodes["dc3"], message(2, alone))  # no other node knows the message
        await keep_apart(nodes["dc3"])
        await nodes.stop("dc3")
        if gap:
            with schema.open_writer(database(nodes, "dc3")) as connection:
                connection.execute("DELETE FROM log WHERE position = (SELECT MAX(position) FROM log) - 1")
            connection.close()
        for sid in ("dc1", "dc2"):
            shutil.rmtree(nodes.data(sid) / "attachments")
        nodes.rejoin("dc3")
        found = await rebuild_and_start(nodes, "dc3")
        assert (found.is_whole, found.salvaged_entries, found.delivered_anew) == (
            (False, 0, 2) if gap else (True, 2, 0)
        )
        for node in (nodes["dc3"], nodes["dc1"]):
            assert sorted((await bodies(node)).values()) == [message(1, lost), message(2, alone), b"small"]
        await scrub(nodes["dc3"])
        assert len(contents(nodes["dc3"])) == 2
        await check_holders(nodes["dc3"])


@pytest.mark.long
async def test_rebuild_without_a_peer_changes_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        for sid in ("dc2", "dc3"):
            await nodes.stop(sid)
        nodes.isolate("dc3")
        zero_middle(database(nodes, "dc3"), "by_uid")
        before = database(nodes, "dc3").read_bytes()
        assert "no peer that has this node's former data can be reached: dc1: " in await rebuild_error(nodes, "dc3")
        assert database(nodes, "dc3").read_bytes() == before


async def test_nodes_being_rebuilt_do_not_rebuild_from_each_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        for sid in ("dc1", "dc2"):
            await nodes.stop(sid)
            zero_middle(database(nodes, sid), "by_uid")
        async with rebuilding(nodes, "dc1"):
            assert "dc1: it is being rebuilt, too" in await rebuild_error(nodes, "dc2")


async def test_peers_that_lack_settled_entries_are_no_source(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        await forget_log(nodes["dc2"])
        for sid in ("dc1", "dc2"):
            await nodes.stop(sid)
        database(nodes, "dc1").unlink()  # a new disk
        await nodes.start("dc1")
        zero_middle(database(nodes, "dc2"), "by_uid")
        assert "are missing at dc1 and" in await rebuild_error(nodes, "dc2")


@pytest.mark.parametrize("after_s", first(1, [0.5, 0.1, 1.2, 2]))
async def test_interrupted_rebuild_goes_on(tmp_path: Path, autojump_clock: MockClock, after_s: float) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await nodes["dc3"].save("alone")
        await nodes.stop("dc3")
        nodes.rejoin("dc3")
        for road in (nodes.network.road("dc1", "dc3"), nodes.network.road("dc2", "dc3")):
            road.bytes_per_s = 10_000
        zero_middle(database(nodes, "dc3"), "by_uid")
        with trio.move_on_after(after_s) as scope:
            await rebuild_database(nodes, "dc3")
        assert scope.cancelled_caught
        begun = replacement_of(database(nodes, "dc3")).stat().st_size
        found = await rebuild_and_start(nodes, "dc3")
        assert found.is_whole
        assert begun
        assert "alone" in (await nodes["dc1"].bodies()).values()


@pytest.mark.long
async def test_rebuild_ends_while_clients_write(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill(nodes)
        await nodes.stop("dc3")
        zero_middle(database(nodes, "dc3"), "by_uid")
        saved: list[str] = []
        for pair in (("dc1", "dc3"), ("dc3", "dc1"), ("dc2", "dc3"), ("dc3", "dc2")):
            nodes.network.road(*pair).delay_s = 0.2  # dc3 never shows the same as another node

        async def write() -> None:
            while True:
                saved.append(f"live {len(saved)}")
                await nodes["dc1"].save(saved[-1])
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: len(saved) > 3)
            found = await rebuild_database(nodes, "dc3")
            nursery.cancel_scope.cancel()
        assert found.is_whole
        take_place(database(nodes, "dc3"), "date")
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        assert set(saved[:-1]) < set((await nodes["dc3"].bodies()).values())
        assert await nodes["dc3"].store.read(queries.log_counts)
