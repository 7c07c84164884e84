"""A change that meets a merge changes the messages that its client saw, whatever their UIDs are then."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Reply
from protocol.values import Dot, UidSet
from replicator.config import UidConflict
from replicator.errors import FolderNotFoundError, UnavailableError
from replicator.mail.mailstore import CopiedMessages, NewMessage, SavedMessage, StoreResult
from replicator.mail.view import MailboxView
from replicator.replication import timing
from replicator.replication.writes.requests import ChangeRequest, CopyRequest, SaveRequest
from replicator.replication.writes.uid_retry import ROUNDS, UidRetry
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import receive
from replicator.store.log.forks import Branch, branch_heads, merge_branch, replay_branch
from replicator.store.store import Store
from resync.entry import anchor
from resync.folder_tree import WHOLE_SHARE
from resync.state import MailboxState
from tests.one_node import run_inline
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.meeting import behind_a_merge, bodies, fork, meeting
from tests.store.harness import INBOX as STORED
from tests.store.harness import WORK, guid, open_store, saving
from tests.store.memory_node import MemoryNode

FLAGGED = frozenset({"\\Flagged"})


async def test_expunge_removes_the_message_that_the_client_saw(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        async with behind_a_merge(nodes) as view:
            await meeting(nodes, partial(nodes["dc1"].mail.expunge, view, UidSet.of([2])))
            assert [message.uid for message in view.messages.values()] in ([1, 3], [1, 4])
        assert await bodies(nodes) == ["both", "rival"]


async def test_flags_follow_the_message_to_its_new_uid(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        done: list[StoreResult] = []
        async with behind_a_merge(nodes) as view:

            async def store() -> None:
                done.append(await nodes["dc1"].mail.store_flags(view, UidSet.of([1, 2]), added=FLAGGED))

            await meeting(nodes, store)
        assert done == [StoreResult(UidSet())]
        for node in nodes.all():
            shown, flags = await node.bodies(), {message.uid: message.flags for message in await node.messages()}
            assert {body: flags[uid] for uid, body in shown.items()} == {
                "both": FLAGGED, "mine": FLAGGED, "rival": frozenset()
            }  # fmt: skip


async def test_unchangedsince_refuses_messages_that_a_merge_renumbered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        done: list[StoreResult] = []
        async with behind_a_merge(nodes) as view:

            async def store() -> None:
                uids, since = UidSet.of([1, 2]), view.highestmodseq
                result = await nodes["dc1"].mail.store_flags(view, uids, added=FLAGGED, unchanged_since=since)
                done.append(result)

            await meeting(nodes, store)
        assert done == [StoreResult(UidSet.of([2]))]
        flagged = [message.uid for message in await nodes["dc2"].messages() if message.flags]
        assert flagged == [1]


async def test_copy_takes_the_message_that_the_client_saw(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        archive = await nodes["dc1"].mail.create_folder(USER, "Archive")
        await fork(nodes)
        done: list[CopiedMessages] = []
        async with behind_a_merge(nodes) as view:

            async def copy() -> None:
                done.append(await nodes["dc1"].mail.copy(view, UidSet.of([1, 2]), archive))

            await meeting(nodes, copy)
        assert done == [CopiedMessages(archive.uidvalidity, ((1, 1), (2, 2)))]
        assert await nodes["dc1"].bodies("Archive") == {1: "both", 2: "mine"}
        assert await bodies(nodes) == ["both", "mine", "rival"]


async def test_move_expunges_what_it_copied(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        archive = await nodes["dc1"].mail.create_folder(USER, "Archive")
        await fork(nodes)
        async with behind_a_merge(nodes) as view:
            await meeting(nodes, partial(nodes["dc1"].mail.move, view, UidSet.of([1, 2]), archive))
        assert await bodies(nodes, "Archive") == ["both", "mine"]
        assert await bodies(nodes) == ["rival"]


async def test_copy_of_a_message_that_a_merge_expunged_copies_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        archive = await nodes["dc1"].mail.create_folder(USER, "Archive")
        await fork(nodes)
        await nodes["dc2"].expunge(1)
        async with behind_a_merge(nodes) as view:

            async def copy() -> None:
                with pytest.raises(UnavailableError, match="gone, or has not reached"):
                    await nodes["dc1"].mail.copy(view, UidSet.of([1, 2]), archive)

            await meeting(nodes, copy)
        assert await bodies(nodes, "Archive") == []
        assert await bodies(nodes) == ["mine", "rival"]


async def test_deleting_a_folder_removes_only_mail_that_the_client_saw(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes, "Work")
        async with behind_a_merge(nodes, "Work"):
            await meeting(nodes, partial(nodes["dc1"].mail.delete_folder, USER, "Work"))
        assert await bodies(nodes, "Work") == ["rival"]


async def test_expunge_of_a_message_that_another_expunged_succeeds(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await fork(nodes)
        await nodes["dc2"].expunge(1)
        async with behind_a_merge(nodes) as view:
            await meeting(nodes, partial(nodes["dc1"].mail.expunge, view, UidSet.of([1, 2])))
        assert await bodies(nodes) == ["rival"]


async def copied_on_both_sides(nodes: Cluster) -> None:
    """Put one GUID into INBOX by two placements, which a merge makes one message under a new UID."""
    await nodes["dc1"].mail.create_folder(USER, "Source")
    await nodes["dc1"].save("copied", "Source")
    await fork(nodes)
    for sid in ("dc1", "dc2"):
        mail = nodes[sid].mail
        await mail.copy(await nodes[sid].view("Source"), UidSet.of([1]), await nodes[sid].inbox())


async def test_flag_stays_on_a_message_whose_placements_are_merged(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await copied_on_both_sides(nodes)
        copies = [(await node.messages())[-1] for node in nodes.all()]
        async with behind_a_merge(nodes) as view:
            await meeting(nodes, partial(store, nodes["dc1"], view, 3))
        (flagged,) = [message for message in await nodes["dc1"].messages() if message.flags]
        assert {copy.guid for copy in copies} == {flagged.guid}
        assert {flagged.dot, *(dot for dot, _ in flagged.also)} == {copy.dot for copy in copies}


async def test_expunge_leaves_the_placement_of_another_branch(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await copied_on_both_sides(nodes)
        async with behind_a_merge(nodes) as view:
            await meeting(nodes, partial(nodes["dc1"].mail.expunge, view, UidSet.of([2, 3])))
        assert await bodies(nodes) == ["both", "copied", "rival"]


async def store(node: Node, view: MailboxView, uid: int) -> None:
    await node.mail.store_flags(view, UidSet.of([uid]), added=FLAGGED)


async def test_mail_for_a_replaced_mailbox_goes_to_the_new_one(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both branches create INBOX under one UIDVALIDITY. A merge ends one of the two mailboxes, and replaces the other.

    So it may be where nodes have no shares of their own.
    """
    monkeypatch.setattr("replicator.replication.coordinator.share_of", lambda *_: WHOLE_SHARE)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        views, folders = [], []
        for node in nodes.all():
            await node.save(f"at {node.sid}")
            views.append(await node.view())
            folders.append(await node.inbox())
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await until(lambda: all(view.deleted for view in views))
        await nodes.converged()
        for node, folder, view in zip(nodes.all(), folders, views, strict=True):
            saved = await node.mail.save(folder, NewMessage(b"late"))
            assert saved.uidvalidity == (await node.inbox()).uidvalidity > folder.uidvalidity
            assert (await node.bodies())[saved.uid] == "late"
            with pytest.raises(FolderNotFoundError, match="open it again"):
                await node.mail.expunge(view, UidSet.of([1]))
        with trio.fail_after(60):
            while await bodies(nodes) != ["at dc1", "at dc2", "late", "late"]:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.01)


async def test_mail_waits_for_its_mailbox_to_be_replaced(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1, uid=UidConflict.UIDVALIDITY) as nodes:
        await fork(nodes)
        saved: list[SavedMessage] = []
        async with behind_a_merge(nodes):
            inbox = await nodes["dc1"].inbox()

            async def save() -> None:
                saved.append(await nodes["dc1"].mail.save(inbox, NewMessage(b"late")))

            await meeting(nodes, save)
        assert saved[0].uidvalidity == (await nodes["dc1"].inbox()).uidvalidity > inbox.uidvalidity
        assert await bodies(nodes) == ["both", "late", "mine", "rival"]
        assert (await nodes["dc1"].bodies())[saved[0].uid] == "late"


async def test_mail_does_not_wait_long_for_a_new_mailbox(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_operation: object) -> None:
        raise FolderNotFoundError("from a master that is ahead")

    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("text")
        monkeypatch.setattr(node.mail._uid_retry, "add", refuse)
        began = trio.current_time()
        with pytest.raises(UnavailableError, match="does not have the new one yet"):
            await node.save("text")
        assert trio.current_time() - began == pytest.approx(timing.ROUTER_SHOW_TIMEOUT_S, abs=0.1)


# ---- the UIDs that a client is told ------------------------------------------------------------------------------


@asynccontextmanager
async def mastered_on_another_branch(directory: Path, *, joined: bool) -> AsyncIterator[tuple[Store, UidRetry]]:
    """Run a node with UIDs 1 to 3, and a remote master that has given UID 1 to another message.

    The node receives the master's entries and, with `joined`, merges them before the master confirms a change.
    """
    master = MemoryNode("dc2.a")
    master.write(saving(b"rival", guid(9), STORED))
    master.write(saving(b"source", guid(8), WORK))
    async with open_store(directory, environment=Environment(run_in_thread=run_inline)) as store:

        async def submit(operation: ChangeRequest) -> Reply:
            reply = master.write(operation.run)
            for logged in master.log():
                bodies = list(logged.bodies.values())
                await store.write(partial(receive, entry=logged.entry, bodies=bodies))
            if joined:
                (head,) = await store.read(partial(branch_heads, chain_id=STORED.mailbox_id))
                branch = await store.read(partial(replay_branch, head=head))
                assert branch is not None
                await store.write(partial(merge_branch, key=STORED, branch=branch))
            return reply

        for number in range(3):
            await store.write(saving(b"text", guid(number), STORED))
        yield store, UidRetry(store, submit, timeout_s=60)
    master.connection.close()


SAVE = SaveRequest(STORED, guid(7), 1_000, (), StoredBody.of(b"new"))
COPY = CopyRequest(WORK, STORED, UidSet.of([1]), (guid(8),), (guid(6),))


@pytest.mark.parametrize(("operation", "added"), [(SAVE, guid(7)), (COPY, guid(8))])
async def test_client_is_told_the_uid_that_its_node_shows(
    tmp_path: Path, operation: SaveRequest | CopyRequest, added: bytes
) -> None:
    async with mastered_on_another_branch(tmp_path, joined=True) as (store, uid_retry):
        view = await store.view(STORED)
        assert view.messages[2].guid == guid(1)  # UID 2 is also what the master will answer
        done = await uid_retry.add(operation)
        assert done.shown
        assert [view.messages[uid].guid for uid in done.uids] == [added]


@pytest.mark.parametrize("operation", [SAVE, COPY])
async def test_uid_that_is_not_known_yet_is_not_told(tmp_path: Path, operation: SaveRequest | CopyRequest) -> None:
    async with mastered_on_another_branch(tmp_path, joined=False) as (store, uid_retry):
        assert not (await uid_retry.add(operation)).shown
        assert set((await store.view(STORED)).messages) == {1, 2, 3}


async def test_copy_is_taken_back_under_its_new_uid(tmp_path: Path) -> None:
    async with mastered_on_another_branch(tmp_path, joined=True) as (store, uid_retry):
        done = await uid_retry.add(COPY)
        here = UidRetry(store, lambda operation: store.write(operation.run), timeout_s=60)
        await here.take_back(STORED, done)
        view = await store.view(STORED)
        assert {message.guid for message in view.messages.values()} == {*map(guid, range(3)), guid(9)}


async def test_copy_under_a_guid_that_its_master_made_is_taken_back(tmp_path: Path) -> None:
    """COPY carries no spare GUIDs: the master makes some where the destination has a message's GUID already."""
    async with open_store(tmp_path, environment=Environment(run_in_thread=run_inline)) as store:

        async def submit(operation: ChangeRequest) -> Reply:
            assert isinstance(operation, CopyRequest)
            return await store.write(replace(operation, spare_guids=(guid(77),)).run)

        await store.write(saving(b"source", guid(8), WORK))
        await store.write(saving(b"source", guid(8), STORED))
        done = await UidRetry(store, submit, timeout_s=60).add(COPY)
        assert done.uids == (2,)
        await UidRetry(store, lambda operation: store.write(operation.run), timeout_s=60).take_back(STORED, done)
        assert [*(await store.view(STORED)).messages] == [1]


async def test_mail_that_another_client_saved_since_is_not_taken_back(tmp_path: Path) -> None:
    """A repeated save rests on the newest entry of the mailbox, too, which the request has not made."""
    async with open_store(tmp_path, environment=Environment(run_in_thread=run_inline)) as store:
        uid_retry = UidRetry(store, lambda operation: store.write(operation.run), timeout_s=60)
        await uid_retry.add(SAVE)
        await uid_retry.add(SaveRequest(STORED, guid(5), 1_000, (), StoredBody.of(b"another client's")))
        again = await uid_retry.add(SAVE)
        assert again.uids == (1,)
        await uid_retry.take_back(STORED, again)
        view = await store.view(STORED)
        assert [message.guid for message in view.messages.values()] == [guid(5)]


# ---- one merge after another -------------------------------------------------------------------------------------


@asynccontextmanager
async def merged_before_each_request(directory: Path, merges: int) -> AsyncIterator[tuple[Store, UidRetry]]:
    """Run a single node with three messages, which a merge renumbers before each of the first `merges` requests."""
    environment = Environment(run_in_thread=run_inline)
    async with Store.open(directory / "node.db", "dc1.a", environment) as store:
        left = merges

        async def submit(operation: ChangeRequest) -> Reply:
            nonlocal left
            if left:
                left -= 1
                await store.write(partial(renumber, rival=f"dc2.{left}"))
            return await store.write(operation.run)

        for number in range(3):
            await store.write(saving(b"text", guid(number), STORED))
        yield store, UidRetry(store, submit, timeout_s=60)


def renumber(tx: Transaction, rival: str) -> None:
    """Merge a branch on which mail was added and expunged, so that messages with the same UIDs get new ones."""
    chain = tx.chain(STORED.mailbox_id)
    assert chain is not None
    head = Dot(rival, 1)
    branch = Branch(head, anchor(head), MailboxState(chain.uidnext, 1, {rival: 1}))
    assert merge_branch(tx, STORED, branch)


async def test_messages_are_found_again_after_each_merge(tmp_path: Path) -> None:
    async with merged_before_each_request(tmp_path, 3) as (store, uid_retry):
        view = await store.view(STORED)
        await uid_retry.expunge(STORED, view.head, [view.messages[1], view.messages[3]])
        assert [(uid, message.guid) for uid, message in view.messages.items()] == [(11, guid(1))]


async def test_request_gives_up_after_too_many_merges(tmp_path: Path) -> None:
    async with merged_before_each_request(tmp_path, ROUNDS) as (store, uid_retry):
        view = await store.view(STORED)
        with pytest.raises(UnavailableError, match="being merged"):
            await uid_retry.expunge(STORED, view.head, list(view.messages.values()))
        assert {message.guid for message in view.messages.values()} == {guid(number) for number in range(3)}
