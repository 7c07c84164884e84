"""Any node makes any change, wherever its master is; the node shows the change at once, and all nodes the same."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Stored
from protocol.values import UID_MAX, UidSet
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, UnavailableError
from replicator.mail.annotations import SPECIAL_USE
from replicator.mail.mailstore import INBOX, CopiedMessages, FolderStatus
from replicator.replication import timing
from replicator.replication.writes.requests import CopyRequest, ExpungeRequest, NotHereYetError, StoreRequest
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit
from tests.replication.cluster import USER, Cluster, Node, cluster
from tests.replication.slow_disk import delay_writes
from tests.store.harness import INBOX as STORED
from tests.store.harness import expunging, guid, open_store, saving

T = TypeVar("T")

SIDS = ["dc1", "dc2", "dc3"]


async def mastered_by(nodes: Cluster, sid: str, name: str) -> None:
    """Make a folder with three messages that this node numbers."""
    if name != INBOX:
        await nodes[sid].mail.create_folder(USER, name)
    for number in range(3):
        await nodes[sid].save(f"{name} {number}", name)
    await nodes.converged()


async def copy(node: Node, uids: Sequence[int], source: str, destination: str) -> CopiedMessages:
    return await node.mail.copy(await node.view(source), UidSet.of(uids), await node.mail.folder(USER, destination))


@pytest.mark.parametrize("sid", SIDS)
async def test_messages_change_at_any_node(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        node = nodes[sid]
        view = await node.view()
        assert await node.save("new") == 4
        assert 4 in view.messages
        await node.flag(1, 4, added=["\\Seen", "$Forwarded"])
        assert view.messages[1].flags == {"\\Seen", "$Forwarded"}
        await node.mail.store_flags(view, UidSet.of([1]), removed=frozenset({"\\Seen"}))
        assert view.messages[1].flags == {"$Forwarded"}
        await node.expunge(2)
        assert list(view.messages) == [1, 3, 4]
        await nodes.converged()
        expected = {1: "INBOX 0", 3: "INBOX 2", 4: "new"}
        for other in nodes.all():
            assert await other.bodies() == expected
            assert await other.messages() == list(view.messages.values())
        assert nodes["dc2"].coordinator.store.context.keys() == node.store.context.keys()


@pytest.mark.parametrize("sid", SIDS)
async def test_master_decides_unchangedsince(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        view = await nodes[sid].view()
        before = view.highestmodseq
        await nodes["dc2"].flag(2)
        done = await nodes[sid].mail.store_flags(
            view, UidSet.of([1, 2, 3]), added=frozenset({"\\Flagged"}), unchanged_since=before
        )
        assert done.refused == UidSet.of([2])
        assert {uid: message.flags for uid, message in view.messages.items()} == {
            1: {"\\Flagged"}, 2: {"\\Seen"}, 3: {"\\Flagged"}
        }  # fmt: skip
        await nodes.converged()


async def test_changes_that_change_nothing_make_no_entry(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        node = nodes["dc1"]
        view = await node.view()
        await node.flag(1)
        modseq, contexts = view.highestmodseq, dict(node.store.context)
        await node.flag(1)
        await node.mail.store_flags(view, UidSet.of([1, 2]), removed=frozenset({"\\Deleted"}))
        await node.mail.store_flags(view, UidSet.of([77]), added=frozenset({"\\Seen"}))
        await node.expunge(77)
        assert (await copy(node, [77], INBOX, INBOX)).uids == ()
        assert (view.highestmodseq, node.store.context) == (modseq, contexts)


@pytest.mark.parametrize(
    ("sid", "destination_master"), [("dc1", "dc2"), ("dc1", "dc1"), ("dc1", "dc3"), ("dc2", "dc3")]
)
async def test_copy_and_move(tmp_path: Path, autojump_clock: MockClock, sid: str, destination_master: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        await mastered_by(nodes, destination_master, "Archive")
        node = nodes[sid]
        await node.flag(3, added=["\\Flagged"])
        copied = await copy(node, [1, 3], INBOX, "Archive")
        assert copied.uids == ((1, 4), (3, 5))
        archive = await node.view("Archive")
        inbox = await node.view()
        assert archive.messages[5].flags == {"\\Flagged"}
        assert archive.messages[5].guid == inbox.messages[3].guid
        assert archive.messages[5].received_ms == inbox.messages[3].received_ms
        again = await copy(node, [1], INBOX, "Archive")
        assert again.uids == ((1, 6),)
        assert archive.messages[6].guid != archive.messages[4].guid
        moved = await node.mail.move(inbox, UidSet.of([2]), await node.mail.folder(USER, "Archive"))
        assert moved.uids == ((2, 7),)
        assert list(inbox.messages) == [1, 3]
        await nodes.converged()
        texts = ["Archive 0", "Archive 1", "Archive 2", "INBOX 0", "INBOX 2", "INBOX 0", "INBOX 1"]
        for other in nodes.all():
            assert await other.bodies("Archive") == dict(enumerate(texts, 1))


async def test_copy_waits_for_its_source_to_arrive(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        await mastered_by(nodes, "dc2", "Archive")
        # dc1 masters INBOX, and its entries reach dc2 late; dc3 asks for the COPY.
        late = nodes.network.road("dc1", "dc2")
        late.hold()
        with trio.fail_after(1):
            uid = await nodes["dc3"].save("late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy, nodes["dc3"], [uid], INBOX, "Archive")
            await trio.sleep(timing.ROUTER_SOURCE_TIMEOUT_S / 2)
            assert len((await nodes["dc2"].view("Archive")).messages) == 3
            late.release()
        assert (await nodes["dc3"].bodies("Archive"))[4] == "late"
        await nodes.converged()


async def test_copy_of_a_message_expunged_meanwhile_copies_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        await mastered_by(nodes, "dc2", "Archive")
        view = await nodes["dc3"].view()
        nodes.network.road("dc1", "dc3").hold()
        nodes.network.road("dc2", "dc3").hold()
        await nodes["dc1"].expunge(2)
        assert 2 in view.messages

        async def copy_fails() -> None:
            with pytest.raises(UnavailableError, match="gone, or has not reached"):
                await copy(nodes["dc3"], [1, 2], INBOX, "Archive")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy_fails)
            await trio.sleep(0.1)
            nodes.network.road("dc1", "dc3").release()
            nodes.network.road("dc2", "dc3").release()
        await nodes.converged()
        assert len((await nodes["dc1"].view("Archive")).messages) == 3


@pytest.mark.parametrize("sid", SIDS)
async def test_folders_change_at_any_node(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        mail = nodes[sid].mail
        created = await mail.create_folder(USER, "Work/2024/Q1")
        assert [folder.name for folder in await mail.folders(USER)] == [INBOX, "Work", "Work/2024", "Work/2024/Q1"]
        await nodes[sid].save("report", "Work/2024/Q1")
        await mail.rename_folder(USER, "Work", "Job")
        assert await mail.folder(USER, "Job/2024/Q1") == await nodes[sid].mail.folder(USER, "Job/2024/Q1")
        assert (await mail.folder(USER, "Job/2024/Q1")).mailbox_id == created.mailbox_id
        with pytest.raises(FolderNotFoundError):
            await mail.folder(USER, "Work")
        await mail.subscribe(USER, "Job", subscribed=True)
        await mail.subscribe(USER, "Elsewhere", subscribed=True)
        await mail.subscribe(USER, "Elsewhere", subscribed=False)
        job = await mail.folder(USER, "Job")
        await mail.annotate(USER, job, {"/private/comment": b"\xff", "/shared/comment": b"x"})
        await mail.annotate(USER, job, {"/shared/comment": None})
        await mail.annotate(USER, None, {"/private/comment": b""})
        sent = await mail.create_folder(USER, "Out", "\\Sent")
        await mail.delete_folder(USER, "Job/2024/Q1")
        await nodes.converged()
        for node in nodes.all():
            assert [folder.name for folder in await node.mail.folders(USER)] == [
                INBOX,
                "Job",
                "Job/2024",
                "Out",
            ]
            assert await node.mail.subscriptions(USER) == ["Job"]
            assert await node.mail.annotations(USER, job) == {"/private/comment": b"\xff"}
            assert await node.mail.annotations(USER, None) == {"/private/comment": b""}
            assert await node.mail.annotated(USER, SPECIAL_USE) == {sent.mailbox_id: b"\\Sent"}


@pytest.mark.parametrize("sid", SIDS)
async def test_renaming_inbox_moves_its_mail(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        await nodes[sid].mail.rename_folder(USER, INBOX, "Old")
        await nodes.converged()
        for node in nodes.all():
            assert list(await node.bodies("Old")) == [1, 2, 3]
            assert await node.bodies() == {}
        assert await nodes[sid].save("first") == 1


@pytest.mark.parametrize("sid", SIDS)
async def test_remote_master_refuses_for_the_same_reasons(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", "Work")
        mail = nodes[sid].mail
        with pytest.raises(FolderExistsError):
            await mail.create_folder(USER, "Work")
        with pytest.raises(FolderExistsError):
            await mail.create_folder(USER, INBOX)
        await mail.create_folder(USER, "Other")
        with pytest.raises(FolderExistsError):
            await mail.rename_folder(USER, "Other", "Work")
        with pytest.raises(FolderNotFoundError):
            await mail.delete_folder(USER, "None")
        for name in ("", "a//b", "/a", "a\nb", "inbox", "x" * 1001, "/".join("x" * 33)):
            with pytest.raises(InvalidNameError):
                await mail.create_folder(USER, name)
        with pytest.raises(InvalidNameError):
            await mail.rename_folder(USER, "Other", "Other/below")
        with pytest.raises(InvalidNameError):
            await mail.delete_folder(USER, INBOX)
        await nodes.converged()


async def test_three_nodes_create_inbox_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        found = []

        async def ask(node: Node) -> None:
            found.append(await node.inbox())

        async with trio.open_nursery() as nursery:
            for node in nodes.all() * 3:
                nursery.start_soon(ask, node)
        assert len(found) == 9
        assert len(set(found)) == 1
        await nodes.converged()
        assert [len(await node.mail.folders(USER)) for node in nodes.all()] == [1, 1, 1]


async def test_folder_renamed_elsewhere_loses_its_old_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc2", "Work")
        for node in nodes.all():
            await node.mail.folder(USER, "Work")  # makes the node cache the folder
        await nodes["dc2"].mail.rename_folder(USER, "Work", "Job")
        await nodes.converged()
        for node in nodes.all():
            with pytest.raises(FolderNotFoundError):
                await node.mail.folder(USER, "Work")


async def test_folder_renamed_during_its_lookup_is_not_cached(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        mail, store = nodes["dc1"].mail, nodes["dc1"].store
        created = await mail.create_folder(USER, "Work")
        await mail.subscribe(USER, "Work", subscribed=True)  # so that the folder has to be read
        read = store.read

        async def read_while_renaming(query: Callable[[Connection], T]) -> T:
            monkeypatch.setattr(store, "read", read)
            found = await read(query)
            await mail.rename_folder(USER, "Work", "Job")
            return found

        monkeypatch.setattr(store, "read", read_while_renaming)
        assert await mail.folder(USER, "Work") == created  # as the folder was when the lookup began
        with pytest.raises(FolderNotFoundError):
            await mail.folder(USER, "Work")


async def test_copy_without_its_source_undoes_no_other_change(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        store, inbox = nodes["dc1"].store, await nodes["dc1"].inbox()
        key = MailboxKey(USER, inbox.mailbox_id, inbox.uidvalidity)
        commits: list[Commit] = []
        store.listeners.append(commits.append)

        async def copy_fails() -> None:
            with pytest.raises(NotHereYetError):
                await store.write(CopyRequest(key, key, UidSet.of([7]), (b"g" * 16,), (b"n" * 16,)).run)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write, saving(b"one", guid(1), key))
            nursery.start_soon(copy_fails)
            nursery.start_soon(store.write, saving(b"two", guid(2), key))
        assert sum(len(commit.logged) for commit in commits) == 2
        assert len(commits) == 1


async def test_changes_of_many_messages_are_split(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.replication.writes.seen_changes.AT_ONCE", 2)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await mastered_by(nodes, "dc2", INBOX)
        await mastered_by(nodes, "dc1", "Archive")
        for number in range(4):
            await nodes["dc1"].save(f"more {number}")
        view = await nodes["dc1"].view()
        since = view.highestmodseq
        await nodes["dc2"].flag(1, 3, 7)
        every = UidSet(((1, 7),))
        done = await nodes["dc1"].mail.store_flags(view, every, added=frozenset({"$A"}), unchanged_since=since)
        assert done.refused == UidSet.of([1, 3, 7])
        copied = await copy(nodes["dc1"], range(1, 8), INBOX, "Archive")
        assert copied.uids == tuple((uid, uid + 3) for uid in range(1, 8))
        await nodes["dc1"].expunge(*range(1, 7))
        assert list(view.messages) == [7]
        await nodes.converged()


async def test_split_copy_that_fails_leaves_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.replication.writes.seen_changes.AT_ONCE", 2)
    async with cluster(tmp_path, autojump_clock) as nodes:
        await mastered_by(nodes, "dc1", INBOX)
        await mastered_by(nodes, "dc2", "Archive")
        view, archive = await nodes["dc3"].view(), await nodes["dc3"].mail.folder(USER, "Archive")
        nodes.network.road("dc1", "dc3").hold()
        await nodes["dc1"].expunge(3)
        assert 3 in view.messages
        with pytest.raises(UnavailableError, match="gone, or has not reached"):
            await nodes["dc3"].mail.copy(view, UidSet.of([1, 2, 3]), archive)
        nodes.network.road("dc1", "dc3").release()
        await nodes.linked()
        await nodes.converged()
        assert list(await nodes["dc2"].bodies("Archive")) == [1, 2, 3]


async def test_status_counts_without_loading_the_mailbox(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        inbox = await node.inbox()
        assert await node.mail.status(inbox) == FolderStatus(inbox, 0, 0, 1, 0, 0)
        view = await node.view()
        assert await node.mail.claim_recent(view) == 1
        for body in ("one", "two", "three"):
            await node.save(body)
        await node.flag(2)
        assert await node.mail.status(inbox) == FolderStatus(inbox, 3, 2, 4, view.highestmodseq, 11)
        assert await node.mail.count_recent(inbox) == 3
        assert await node.mail.claim_recent(view) == 1
        assert await node.mail.claim_recent(view) == 4
        assert await node.mail.count_recent(inbox) == 0
        await nodes.converged()
        assert await nodes["dc2"].mail.count_recent(inbox) == 3  # each node counts its own recent messages


async def test_concurrent_clients_at_all_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for name in ("A", "B"):
            await nodes["dc1"].mail.create_folder(USER, name)
        await nodes.converged()

        async def client(node: Node, number: int) -> None:
            for turn in range(6):
                uid = await node.save(f"{node.sid} {number} {turn}", "A")
                view = await node.view("A")
                assert uid in view.messages
                await node.flag(uid, name="A", added=[f"${node.sid}"])
                assert f"${node.sid}" in view.messages[uid].flags
                copied = await copy(node, [uid], "A", "B")
                assert copied.uids[0][1] in (await node.view("B")).messages
                if turn % 3 == 0:
                    await node.expunge(uid, name="A")

        async with trio.open_nursery() as nursery:
            for node in nodes.all():
                for number in range(3):
                    nursery.start_soon(client, node, number)
        await nodes.converged()
        expected = {f"{sid} {number} {turn}" for sid in SIDS for number in range(3) for turn in range(6)}
        for node in nodes.all():
            texts = list((await node.bodies("B")).values())
            assert set(texts) == expected
            assert len(texts) == len(expected)
            assert len(await node.messages("A")) == 36


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        (((1, 3),), ()),
        (((3, 3),), ()),
        (((2, 5), (7, 8), (10, 10)), ((4, 5), (7, 8))),
        (((1, UID_MAX),), ((4, 9), (11, UID_MAX))),
        (((4, 9),), ((4, 9),)),
    ],
)
async def test_missing_uids_are_reported_as_ranges(
    tmp_path: Path, asked: tuple[tuple[int, int], ...], missing: tuple[tuple[int, int], ...]
) -> None:
    async with open_store(tmp_path) as store:
        for number in range(10):
            await store.write(saving(b"text", guid(number), STORED))
        await store.write(expunging(*range(4, 10), key=STORED))
        for operation in (
            StoreRequest(STORED, UidSet(asked), None, ("\\Seen",), ()),
            ExpungeRequest(STORED, UidSet(asked), None),
        ):
            reply = await store.write(operation.run)
            assert isinstance(reply, Stored)
            assert reply.refused == UidSet(missing)


async def test_slow_disk_refuses_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        delay_writes(nodes["dc1"], partial(trio.sleep, 2 * timing.ROUTER_SOURCE_TIMEOUT_S))
        assert await nodes["dc1"].save("text") == 1
