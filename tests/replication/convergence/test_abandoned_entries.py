"""Abandoned entries: nodes save again what they add, and they wait no longer."""

import logging
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot, UidSet
from replicator.replication import timing
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.log.apply import receive
from resync.entry import Entry, FlagAdd, FolderCreate, FolderDelete, FolderRename, MailAdd, MailDel, Merge, tree_id
from resync.row import Row
from tests.replication.cluster import EPOCH_MS, USER, Cluster, Node, cluster

LOST = "dc9.lost"
BOUND_S = timing.OVERDUE_ABANDON_S + 2 * timing.OVERDUE_S + 30


def added(uid: int, body: bytes) -> MailAdd:
    stored = StoredBody.of(body)
    return MailAdd(uid, bytes([uid]) * 16, EPOCH_MS, ("\\Seen",), len(body), stored.content_hash, copied=False)


async def take_in(nodes: Cluster, *entries: tuple[Entry, list[bytes]]) -> None:
    """Give these entries and their bodies to dc1, from which the other nodes get them."""
    for entry, bodies in entries:
        stored = [StoredBody.of(body) for body in bodies]
        await nodes["dc1"].store.write(partial(receive, entry=entry, bodies=stored))


def abandoned(node: Node) -> float | None:
    return node.registry.get_sample_value("replicator_abandoned_entries_total")


def row(mail: MailAdd, dot: Dot, change: int = 0) -> Row:
    return Row(
        mail.uid, dot, change, mail.guid, dot, 9, {}, mail.received_ms, mail.size_bytes, mail.content_hash
    )  # fmt: skip


def time(nodes: Cluster) -> int:
    return nodes["dc1"].store.last_time + 1


@pytest.mark.long
async def test_mail_of_abandoned_entries_is_saved_again_once(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("before")
        folder = await nodes["dc1"].inbox()
        mailbox = (USER, folder.mailbox_id, folder.uidvalidity)
        mail = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, *mailbox,
            (added(20, b"kept"), added(21, b"expunged"), FlagAdd(UidSet.of([20]), ("$Later",))),
        )  # fmt: skip
        gone = Entry(Dot(LOST, 2), (Dot(LOST, 1),), time(nodes), 10, *mailbox, (MailDel(UidSet.of([21, 1])),))
        await take_in(nodes, (mail, [b"kept", b"expunged"]), (gone, []))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        for node in nodes.all():
            assert not await node.waiting()
            assert sorted((await node.bodies()).values()) == ["before", "kept"]
            (message,) = [message for message in await node.messages() if message.guid == bytes([20]) * 16]
            assert message.flags == {"\\Seen", "$Later"}
            assert abandoned(node) == 2
        assert "1 messages or folders were saved again, and 2 other changes are lost" in caplog.text
        await nodes.stop("dc3")
        nodes.erase("dc3")
        await nodes.start("dc3")  # gets the entries from the logs of the others
        await nodes.linked()
        await trio.sleep(BOUND_S)
        await nodes.converged()
        assert not await nodes["dc3"].waiting()


async def test_folder_of_abandoned_entries_is_created_again_with_its_mail(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("before")
        folder_id = b"f" * 16
        created = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, USER, tree_id(USER), 0,
            (FolderCreate(folder_id, "Lost", 1_800_000_000),),
        )  # fmt: skip
        mail = Entry(Dot(LOST, 2), (), time(nodes), 1, USER, folder_id, 1_800_000_000, (added(1, b"in it"),))
        await take_in(nodes, (created, []), (mail, [b"in it"]))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        for node in nodes.all():
            assert not await node.waiting()
            assert await node.bodies("Lost") == {1: "in it"}


async def test_folders_of_one_name_and_time_are_all_created_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        ids = [b"time" + letter * 12 for letter in (b"a", b"b", b"c")]
        created = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, USER, tree_id(USER), 0,
            tuple(FolderCreate(folder_id, "Lost", 1_800_000_000) for folder_id in ids),
        )  # fmt: skip
        await take_in(nodes, (created, []))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        for node in nodes.all():
            assert {*ids} <= {folder.mailbox_id for folder in await node.mail.folders(USER)}


@pytest.mark.long
async def test_entries_wait_while_their_folder_cannot_be_created_again(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        folder_id = b"f" * 16
        for name in ("Lost", f"Lost {folder_id.hex()[-8:]}"):
            await nodes["dc1"].mail.create_folder(USER, name)
        created = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, USER, tree_id(USER), 0,
            (FolderCreate(folder_id, "Lost", 1_800_000_000),),
        )  # fmt: skip
        await take_in(nodes, (created, []))
        await trio.sleep(BOUND_S)
        for node in nodes.all():
            assert await node.waiting() == 1
            assert abandoned(node) == 0
        assert "folder 'Lost' of alice cannot be created again: a folder 'Lost' already exists" in caplog.text
        assert "1 entries of the folder tree of alice wait still" in caplog.text
        assert "abandoned" not in " ".join(caplog.messages)
        await nodes["dc1"].mail.rename_folder(USER, "Lost", "Found")
        await trio.sleep(timing.OVERDUE_PAUSE_MAX_S)
        await nodes.converged()
        assert "Lost" in {folder.name for folder in await nodes["dc2"].mail.folders(USER)}
        assert abandoned(nodes["dc1"]) == 1


async def test_expunged_mail_does_not_come_back_with_an_abandoned_merge(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("expunged")
        await nodes["dc1"].save("moved")
        view = await nodes["dc1"].view()
        rows = [
            row(added(uid, b"")._replace(guid=one.guid, content_hash=one.content_hash), one.dot, one.change)
            for uid, one in view.messages.items()
        ]
        await nodes["dc1"].mail.create_folder(USER, "Work")
        await nodes["dc1"].mail.move(view, UidSet.of([2]), await nodes["dc1"].mail.folder(USER, "Work"))
        await nodes["dc1"].expunge(1)
        await nodes["dc1"].save("kept")
        await nodes.converged()
        for node in nodes.all():  # as after `content.keep_expunged`
            await node.store.write(lambda tx: tx.connection.execute("DELETE FROM expunged"))
        unseen = row(added(20, b"kept"), Dot("dc7.lost", 1))
        context = tuple({one.dot.origin: one.dot for one in [*rows, unseen]}.values())
        merge = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7), Dot("dc7.lost", 3)), time(nodes), 9, *MailboxKey.of(view),
            (Merge(30, 0, context, (*rows, unseen), ()),),
        )  # fmt: skip
        await take_in(nodes, (merge, []))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        assert sorted((await nodes["dc2"].bodies()).values()) == ["kept", "kept"]
        assert list((await nodes["dc2"].bodies("Work")).values()) == ["moved"]
        assert abandoned(nodes["dc2"]) == 1


async def test_mail_that_an_abandoned_merge_removed_is_not_saved_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Mail that was expunged after the merge, under its new UID, stays away too, whichever branch added it."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("before")
        key = MailboxKey.of(await nodes["dc1"].view())
        mails = [added(uid, body) for uid, body in ((20, b"taken"), (21, b"expunged"), (22, b"kept"))]
        branch = Entry(Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, *key, tuple(mails))
        other = Entry(Dot("dc7.lost", 1), (Dot("dc6.lost", 7),), time(nodes), 9, *key, (added(23, b"other"),))
        moved = (row(mails[1]._replace(uid=31), branch.dot, 1), row(added(23, b"other")._replace(uid=32), other.dot))
        merge = Entry(
            Dot("dc7.lost", 2), (other.dot, branch.dot), time(nodes), 10, *key,
            (Merge(33, 0, (branch.dot, other.dot), moved, (mails[0].guid,)),),
        )  # fmt: skip
        gone = Entry(Dot("dc7.lost", 3), (merge.dot,), time(nodes), 11, *key, (MailDel(UidSet.of([31])),))
        bodies = [b"taken", b"expunged", b"kept"]
        await take_in(nodes, (branch, bodies), (other, [b"other"]), (merge, []), (gone, []))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        assert sorted((await nodes["dc2"].bodies()).values()) == ["before", "kept", "other"]


@pytest.mark.long
async def test_no_entry_is_abandoned_while_a_node_is_away_that_was_not_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await nodes.stop("dc3")
        folder = await nodes["dc1"].inbox()
        mail = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, USER, folder.mailbox_id, folder.uidvalidity,
            (added(20, b"kept"),),
        )  # fmt: skip
        await take_in(nodes, (mail, [b"kept"]))
        await trio.sleep(2 * BOUND_S)
        assert await nodes["dc1"].waiting() == 1
        assert await nodes["dc1"].bodies() == {1: "before"}
        nodes.removed = ("dc3",)
        for sid in ("dc1", "dc2"):
            await nodes.stop(sid)
            await nodes.start(sid)
            await nodes.linked()
        await trio.sleep(2 * BOUND_S)
        assert await nodes["dc1"].waiting() == 0
        assert sorted((await nodes["dc2"].bodies()).values()) == ["before", "kept"]


async def test_node_that_can_replay_a_branch_becomes_master_to_merge_it(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only dc2 can rebuild the state on which the branch is based, as if from its checkpoint."""

    async def cannot(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        for body in ("first", "second"):
            await nodes["dc1"].save(body)
        await nodes.converged()
        for sid in ("dc1", "dc3"):
            monkeypatch.setattr(nodes[sid].coordinator.fork_merger, "join_branches", cannot)
            monkeypatch.setattr(nodes[sid].coordinator.fork_merger, "can_replay", cannot)
        key = MailboxKey.of(await nodes["dc1"].view())
        first, _ = [
            item.entry for item in await nodes["dc1"].store.log_after(0) if item.entry.mailbox_id == key.mailbox_id
        ]
        branch = Entry(Dot(LOST, 1), (first.dot,), time(nodes), 2, *key, (added(2, b"on a branch"),))
        await take_in(nodes, (branch, [b"on a branch"]))
        await trio.sleep(2 * timing.OVERDUE_S)
        await nodes.converged()
        assert await nodes["dc2"].coordinator.mastership.find(key) == "dc2"
        assert sorted((await nodes["dc3"].bodies()).values()) == ["first", "on a branch", "second"]
        assert not await nodes["dc1"].waiting()


@pytest.mark.long
async def test_uids_of_one_abandoned_branch_say_nothing_about_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("before")
        folder = await nodes["dc1"].inbox()
        mailbox = (USER, folder.mailbox_id, folder.uidvalidity)
        other = added(20, b"two")._replace(guid=b"2" * 16)
        one = Entry(Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, *mailbox, (added(20, b"one"),))
        two = Entry(Dot("dc7.lost", 1), (Dot("dc6.lost", 7),), time(nodes), 10, *mailbox, (other,))
        gone = Entry(Dot("dc5.lost", 1), (Dot("dc4.lost", 7),), time(nodes), 11, *mailbox, (MailDel(UidSet.of([20])),))
        await take_in(nodes, (one, [b"one"]), (two, [b"two"]), (gone, []))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        assert sorted((await nodes["dc2"].bodies()).values()) == ["before", "one", "two"]


@pytest.mark.long
async def test_folder_that_an_abandoned_branch_deleted_is_not_created(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("before")
        tree = (USER, tree_id(USER), 0)
        kept = FolderCreate(b"f" * 16, "Kept", 1_800_000_000)
        gone = FolderCreate(b"g" * 16, "Gone", 1_800_004_096)
        created = Entry(
            Dot(LOST, 1), (Dot("dc8.lost", 7),), time(nodes), 9, *tree,
            (kept, gone),
        )  # fmt: skip
        changed = Entry(
            Dot(LOST, 2), (Dot(LOST, 1),), time(nodes), 10, *tree,
            (FolderDelete(b"g" * 16), FolderRename(b"f" * 16, "New")),
        )  # fmt: skip
        await take_in(nodes, (created, []), (changed, []))
        await trio.sleep(BOUND_S)
        await nodes.converged()
        assert {folder.name for folder in await nodes["dc3"].mail.folders(USER)} == {"INBOX", "New"}


@pytest.mark.long
async def test_abandoned_entry_is_merged_when_its_predecessor_comes_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        uid = await nodes["dc1"].save("before")
        await nodes.converged()
        key, head = MailboxKey.of(await nodes["dc1"].view()), (await nodes["dc1"].view()).head
        assert head is not None
        modseq = (await nodes["dc1"].mail.status(await nodes["dc1"].inbox())).highestmodseq
        seen, flagged = (FlagAdd(UidSet.of([uid]), (flag,)) for flag in ("\\Seen", "\\Flagged"))
        first = Entry(Dot("dc8.lost", 1), (head,), time(nodes), modseq + 1, *key, (seen,))
        second = Entry(Dot(LOST, 1), (first.dot,), time(nodes) + 1, modseq + 2, *key, (flagged,))
        await take_in(nodes, (second, []))
        await trio.sleep(BOUND_S)
        assert not await nodes["dc3"].waiting()
        await take_in(nodes, (first, []))  # a disk that was thought lost comes back
        await trio.sleep(BOUND_S)
        await nodes.stop("dc3")
        nodes.erase("dc3")
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert not await node.waiting()
            assert [message.flags for message in await node.messages()] == [{"\\Seen", "\\Flagged"}]
