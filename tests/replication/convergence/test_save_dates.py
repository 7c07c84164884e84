"""Save dates (RFC 8514) are the same at all nodes, whichever way a message came to a node."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.config import LogConfig
from replicator.replication import timing
from replicator.replication.checkpoints.log_truncation import LogTruncation
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.tasks import UndeleteOptions, UndeleteStatus
from resync.row import Row
from tests.replication.checkpoints.bootstrapping import Alone, archive_of, bootstrap_of
from tests.replication.cluster import EPOCH_MS, USER, Cluster, Node, cluster, until
from tests.replication.log.truncating import forget_log, log_entries
from tests.replication.tasks.running import check_at, run_task
from tests.store.harness import open_store, without_histories


def now_ms(clock: MockClock) -> int:
    return EPOCH_MS + int(clock.current_time() * 1000)


async def rows_at(node: Node, name: str = "INBOX") -> dict[int, Row]:
    mailbox_id = (await node.mail.folder(USER, name)).mailbox_id
    found = await node.store.read(lambda reader: list(queries.mailbox_rows(reader, mailbox_id)))
    return {row.uid: row for row in found}


async def dates(nodes: Cluster, name: str = "INBOX") -> Mapping[int, int | None]:
    """Return the save dates of a folder by UID, which all nodes show alike once they are equal."""
    await nodes.converged()
    found = [{one.uid: one.saved_ms for one in await node.messages(name)} for node in nodes.all()]
    assert all(one == found[0] for one in found)
    for node in nodes.all():
        assert {uid: row.saved_ms for uid, row in (await rows_at(node, name)).items()} == found[0]
        assert (await check_at(node)).damage.keys() <= {"content"}, "only bodies may be missing, for a while"
    return found[0]


async def test_each_way_into_a_mailbox_gives_a_new_date(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        work = await nodes["dc1"].mail.create_folder(USER, "Work")
        began = now_ms(autojump_clock)
        await nodes["dc1"].save("mail")
        (delivered,) = (await dates(nodes)).values()
        await trio.sleep(10)
        await nodes["dc2"].mail.copy(await nodes["dc2"].view(), UidSet.of([1]), work)
        (copied,) = (await dates(nodes, "Work")).values()
        await trio.sleep(10)
        await nodes["dc3"].flag(1)
        assert list((await dates(nodes)).values()) == [delivered], "a flag changes no date"
        await nodes["dc3"].expunge(1)
        await nodes["dc3"].expunge(1, name="Work")
        await nodes.converged()
        status = await run_task(nodes["dc1"], UndeleteOptions(USER, "INBOX"), UndeleteStatus)
        assert status.restored == 1
        (restored,) = (await dates(nodes)).values()
        assert delivered is not None
        assert copied is not None
        assert restored is not None
        assert began <= delivered < delivered + 10_000 <= copied < copied + 10_000 <= restored <= now_ms(autojump_clock)


async def test_mail_of_both_sides_of_a_cut_keeps_its_dates(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Both UIDs change in the merge, and the dates do not."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        for sid in ("dc1", "dc2"):
            await trio.sleep(5)
            await nodes[sid].save(f"at {sid}")
        apart = {row.guid: row.saved_ms for sid in ("dc1", "dc2") for row in (await rows_at(nodes[sid])).values()}
        assert len({*apart.values()} - {None}) == 3
        nodes.rejoin("dc1")
        await nodes.linked()
        merged = await dates(nodes)
        assert sorted(merged) == [1, 3, 4]
        assert {row.guid: row.saved_ms for row in (await rows_at(nodes["dc3"])).values()} == apart


async def test_message_of_two_placements_keeps_the_date_of_the_earliest(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A message is brought back on both sides, and then expunged where it came earliest."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("mail")
        await nodes["dc1"].expunge(1)
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        placed = {}
        for sid in ("dc1", "dc2"):
            await trio.sleep(5)
            await run_task(nodes[sid], UndeleteOptions(USER, "INBOX"), UndeleteStatus)
            (row,) = (await rows_at(nodes[sid])).values()
            placed[row.dot] = row.saved_ms
        assert len({*placed.values()}) == 2
        nodes.rejoin("dc1")
        await nodes.linked()
        (saved_ms,) = (await dates(nodes)).values()
        (row,) = (await rows_at(nodes["dc1"])).values()
        assert len(row.placements()) == 2
        assert saved_ms == placed[row.dot]


async def test_dates_outlive_the_log_and_reach_a_node_that_begins_with_checkpoints(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for body in ("one", "two"):
            await trio.sleep(1)
            await node.save(body)
        before = await rows_at(node)
        assert len({row.saved_ms for row in before.values()} - {None}) == 2
        archive = archive_of(tmp_path, "dc1", autojump_clock)
        truncation = LogTruncation(node.store, archive, Alone(), LogConfig(), node.environment)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(truncation.run)
            await truncation.checkpoint_now()
            nursery.cancel_scope.cancel()
        await forget_log(node)
        assert await log_entries(node) == 0
        await trio.sleep(timing.BOOTSTRAP_AGE_MIN_S)
        (tmp_path / "new").mkdir()
        async with open_store(tmp_path / "new", "dc9.a", nodes.environment("dc9")) as store:
            await bootstrap_of(store, tmp_path, autojump_clock).run()
            mailbox_id = (await node.inbox()).mailbox_id
            found = await store.read(lambda reader: list(queries.mailbox_rows(reader, mailbox_id)))
            assert {row.uid: row for row in found} == before == await rows_at(node)


async def test_dates_reach_a_node_that_takes_over_what_its_peers_show(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("mail")
        before = await dates(nodes)
        await nodes.stop("dc3")
        nodes.erase("dc3")
        for sid in ("dc1", "dc2"):
            await forget_log(nodes[sid])
        await nodes.start("dc3")
        await nodes.linked()
        await until(lambda: nodes["dc3"].store.context == nodes["dc1"].store.context)
        assert await dates(nodes) == before


async def test_messages_that_an_earlier_version_has_placed_have_no_date_anywhere(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that reads the entry from a log after its upgrade shows the same as one that applied it before."""
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        with without_histories(monkeypatch):
            await nodes["dc1"].save("of an earlier version")
            await nodes.converged()
            nodes.isolate("dc3")
            await nodes.linked(["dc1", "dc2"], ["dc3"])
            await nodes["dc1"].save("not yet at dc3")
        for sid in ("dc1", "dc3"):
            await nodes[sid].save(f"at {sid}")
        nodes.rejoin("dc3")
        await nodes.linked()
        found = await dates(nodes)
        key = MailboxKey.of(await nodes["dc1"].inbox())
        shown = await nodes["dc2"].store.read(partial(queries.messages, mailbox_id=key.mailbox_id))
        assert len(found) == len(shown[1]) == 4
        bodies = await nodes["dc2"].bodies()
        assert {bodies[uid] for uid, saved_ms in found.items() if saved_ms is None} == {
            "of an earlier version",
            "not yet at dc3",
        }
