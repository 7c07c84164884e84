"""Undelete restores expunged mail at all nodes, once, and only mail that the user does not have."""

import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import FetchHash, FetchPart, RefusalCode, Refused, Reply
from protocol.values import UidSet
from replicator.errors import FolderNotFoundError, UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, ReadChunk
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.link import PeerLink
from replicator.replication.tasks import undelete as undelete_task
from replicator.replication.tasks.undelete import NO_BODY, PRESENT
from replicator.replication.writes.requests import ChangeRequest
from replicator.store.store import Store
from replicator.tasks import UndeleteOptions, UndeleteStatus
from tests.replication.bodies.large_messages import LOGO, answer_chunks, attachment_files, contents, message
from tests.replication.cluster import EPOCH_MS, USER, Node, cluster, until
from tests.replication.tasks.running import run_task


async def undelete(
    node: Node, mailbox: str = "INBOX", since_ms: int | None = None, *, dry_run: bool = False
) -> UndeleteStatus:
    status = await run_task(node, UndeleteOptions(USER, mailbox, since_ms, dry_run), UndeleteStatus)
    assert (status.state, status.error) == ("done", None)
    assert status.done == status.total == len(status.messages)
    assert status.done == status.restored + status.present + status.elsewhere + status.textless
    return status


async def save_some(node: Node, *bodies: str, name: str = "INBOX") -> None:
    for body in bodies:
        await node.save(body, name)


async def test_undeleted_mail_has_its_flags_and_dates_at_all_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        for number, given in enumerate([{"\\Seen", "$Later"}, {"\\Deleted"}, set[str]()]):
            mail = NewMessage(b"mail %d" % number, frozenset(given), EPOCH_MS - 1_000 * number)
            await node.mail.save(await node.inbox(), mail)
        before = {one.guid: one for one in await node.messages()}
        await nodes.converged()
        await nodes["dc2"].expunge(1, 2)
        await nodes.converged()
        status = await undelete(nodes["dc3"])
        assert (status.restored, status.restored_bytes, status.present, status.elsewhere) == (2, 12, 0, 0)
        await nodes.converged()
        for each in nodes.all():
            assert await each.bodies() == {3: "mail 2", 4: "mail 1", 5: "mail 0"}, "the oldest first"
        back = {one.uid: one for one in await nodes["dc1"].messages()}
        for uid, flags in ((4, frozenset[str]()), (5, frozenset({"\\Seen", "$Later"}))):
            was = before[back[uid].guid]
            assert (back[uid].received_ms, back[uid].flags) == (was.received_ms, flags)
        assert [(one.uid, one.why_not) for one in status.messages] == [(2, None), (1, None)]
        assert [one.guid for one in status.messages] == [back[uid].guid.hex() for uid in (4, 5)]
        again = await undelete(nodes["dc1"])
        assert (again.done, again.messages) == (0, [])


async def test_mail_undeleted_on_two_branches_and_expunged_on_one_stays(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A third node merges both messages into one before it hears of the expunge."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("mail")
        await nodes["dc1"].expunge(1)
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1", "dc3"], ["dc2"])
        assert (await undelete(nodes["dc1"])).restored == 1
        await until(lambda: nodes["dc3"].store.context == nodes["dc1"].store.context)
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"], ["dc3"])
        await nodes["dc1"].expunge(*await nodes["dc1"].bodies())
        for _ in range(9):  # gives the undelete at dc2 the entry with the higher number
            await nodes["dc2"].save("another mail")
        assert (await undelete(nodes["dc2"])).restored == 1
        nodes.network.mend(("dc2", "dc3"))
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await until(lambda: not nodes["dc2"].store.waiting and not nodes["dc3"].store.waiting)
        nodes.rejoin("dc1")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == [*9 * ["another mail"], "mail"]


async def test_dry_run_reports_and_changes_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, "one", "two")
        await node.expunge(1, 2)
        before = await node.digests()
        status = await undelete(node, dry_run=True)
        assert (status.restored, status.restored_bytes, len(status.messages)) == (2, 6, 2)
        assert await node.digests() == before


async def test_undelete_restores_only_what_was_expunged_since_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, "one", "two", "three")
        await node.expunge(1)
        await trio.sleep(100)
        since_ms = node.environment.clock_ms()
        await node.expunge(2)
        assert (await undelete(node, since_ms=since_ms)).restored == 1
        assert await node.bodies() == {3: "three", 4: "two"}


async def test_mail_that_is_in_another_folder_is_not_restored(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, "moved", "moved and expunged", "expunged")
        archive = await node.mail.create_folder(USER, "Archive")
        await node.mail.move(await node.view(), UidSet.of([1, 2]), archive)
        await node.expunge(2, name="Archive")
        await node.expunge(3)
        status = await undelete(node)
        assert (status.restored, status.elsewhere) == (2, 1)
        assert sorted((await node.bodies()).values()) == ["expunged", "moved and expunged"]
        assert {one.why_not for one in status.messages} == {None, "the user has it in 'Archive'"}
        left = await undelete(node, "Archive")
        assert (left.restored, left.elsewhere) == (0, 1)
        assert [one.why_not for one in left.messages] == ["the user has it in 'INBOX'"]


async def test_mail_of_deleted_folders_comes_back_with_the_folder(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Undelete restores the mail of all folders that had the name. A second run finds all of it present."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        for body in ("of the first", "of the second"):
            await node.mail.create_folder(USER, "Work")
            await node.save(body, "Work")
            await node.mail.delete_folder(USER, "Work")
        await nodes.converged()
        dry = await undelete(nodes["dc2"], "Work", dry_run=True)
        assert dry.restored == 2
        assert "Work" not in [folder.name for folder in await nodes["dc2"].mail.folders(USER)]
        assert (await undelete(nodes["dc2"], "Work")).restored == 2
        await nodes.converged()
        assert sorted((await node.bodies("Work")).values()) == ["of the first", "of the second"]
        again = await undelete(node, "Work")
        assert (again.restored, again.present, {one.why_not for one in again.messages}) == (0, 2, {PRESENT})


async def test_mail_expunged_from_two_folders_of_one_name_comes_back_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for name in ("Work", "Old"):
            await node.mail.create_folder(USER, name)
        await node.save("mail", "Work")
        await node.mail.move(await node.view("Work"), UidSet.of([1]), await node.mail.folder(USER, "Old"))
        await node.expunge(1, name="Old")
        await node.mail.delete_folder(USER, "Work")
        await node.mail.rename_folder(USER, "Old", "Work")
        status = await undelete(node, "Work")
        assert (status.restored, status.done) == (1, 1)
        assert await node.bodies("Work") == {2: "mail"}


async def test_body_that_is_lost_comes_from_another_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await save_some(nodes["dc1"], "at both", "at the other one", "is nowhere")
        await nodes["dc1"].expunge(1, 2, 3)
        await nodes.converged()
        nodes["dc1"].damage("DELETE FROM content WHERE size_bytes <> 7")
        nodes["dc2"].damage("DELETE FROM content WHERE size_bytes <> 16")
        status = await undelete(nodes["dc1"])
        assert (status.restored, status.textless) == (2, 1)
        assert sorted((await nodes["dc1"].bodies()).values()) == ["at both", "at the other one"]
        assert [one.why_not for one in status.messages].count(NO_BODY) == 1
        for node in nodes.all():
            node.damage("DELETE FROM expunged")  # the check of a stopping node expects the bodies of expunged mail


async def test_large_message_comes_back_with_its_attachments(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await node.mail.save(await node.inbox(), NewMessage(message(1)))
        await nodes.converged()
        await node.expunge(1)
        await nodes.converged()
        assert (await undelete(nodes["dc2"])).restored == 1
        await nodes.converged()
        for each in nodes.all():
            assert (await each.bodies())[2].encode() == message(1)


async def test_attachment_stored_under_its_holders_name_comes_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Another file lies at the place that the attachment's hash leads to."""
    digits = sha256(LOGO).hexdigest()
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        place = node.config.node.data / "attachments" / digits[:2] / digits[2:4] / digits[4:]
        place.mkdir(parents=True)
        (place / "of somebody else").touch()
        await node.mail.save(await node.inbox(), NewMessage(message(1)))
        await node.expunge(1)
        assert (await undelete(node)).restored == 1
        assert {uid: text.encode() for uid, text in (await node.bodies()).items()} == {2: message(1)}


async def test_large_body_comes_over_a_slow_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await node.mail.save(await node.inbox(), NewMessage(message(1, b"0" * (1 << 17) * 9)))
        await node.expunge(1)
        await nodes.converged()
        node.damage("DELETE FROM content", "DELETE FROM attachment")
        shutil.rmtree(node.config.node.data / "attachments")
        answer_chunks(monkeypatch, lambda _: None, delay_s=20.0)
        began = trio.current_time()
        assert (await undelete(node)).restored == 1
        assert trio.current_time() > began + timing.BODIES_PATIENCE_S


@pytest.mark.parametrize(
    "busy",
    [
        lambda command: isinstance(command, FetchPart),
        lambda command: isinstance(command, FetchHash),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_undelete_asks_a_busy_neighbour_again(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    busy: Callable[[AnyFetch], bool],
    *,
    dry_run: bool,
) -> None:
    answer, refusals = peer_fetch.answer_fetch, [1, 2]

    async def refusing(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
        if busy(command) and refusals:
            refusals.pop()
            return Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again")
        return await answer(store, link, command, read_chunk)

    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        await node.mail.save(await node.inbox(), NewMessage(message(1)))
        await node.expunge(1)
        await nodes.converged()
        node.damage("DELETE FROM content", "DELETE FROM attachment")
        shutil.rmtree(node.config.node.data / "attachments")
        monkeypatch.setattr(peer_fetch, "answer_fetch", refusing)
        status = await undelete(node, dry_run=dry_run)
        assert (status.restored, status.textless, refusals) == (1, 0, [])
        if dry_run:
            node.damage("DELETE FROM expunged")  # the check of a stopping node expects the bodies of expunged mail


async def test_dry_run_fetches_and_repairs_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        for body in (b"at the other one", message(1), message(2, b"in parts" * 10_000), b"at no node"):
            await node.mail.save(await node.inbox(), NewMessage(body))
        await node.expunge(1, 2, 3, 4)
        await nodes.converged()
        nodes["dc2"].damage("DELETE FROM content WHERE size_bytes = 10")
        node.damage("DELETE FROM content WHERE size_bytes < 20")
        for file in contents(node):
            file.write_bytes(b"damaged")
        before = await stored_bodies(node)
        status = await undelete(node, dry_run=True)
        await trio.sleep(60)
        assert (status.restored, status.textless) == (3, 1)
        assert await stored_bodies(node) == before
        for file in contents(nodes["dc2"]):
            file.write_bytes(b"damaged")
        assert (await undelete(node, dry_run=True)).textless == 3
        for each in nodes.all():
            each.damage("DELETE FROM expunged")  # the check of a stopping node expects the bodies of expunged mail


async def stored_bodies(node: Node) -> tuple[object, ...]:
    """Return all bodies and attachments that the node has."""
    query = "SELECT hash, body FROM content ORDER BY hash"
    rows = await node.store.read(lambda reader: reader.execute(query).fetchall())
    return rows, {path: path.read_bytes() for path in attachment_files(node, "*") if path.is_file()}


async def test_undelete_goes_on_while_its_master_moves(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed request may have been done or not."""
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, "one", "two", "three")
        await node.expunge(1, 2, 3)
        submit, saves = Coordinator.submit, list[ChangeRequest]()

        async def fail_at_times(coordinator: Coordinator, operation: ChangeRequest) -> Reply:
            saves.append(operation)
            reply = await submit(coordinator, operation) if len(saves) != 2 else None
            if reply is None or len(saves) == 4:
                raise UnavailableError("the mailbox is changing masters")
            return reply

        monkeypatch.setattr(Coordinator, "submit", fail_at_times)
        status = await undelete(node)
        assert (status.restored, len(saves)) == (3, 4)
        assert sorted((await node.bodies()).values()) == ["one", "three", "two"]


async def test_undelete_fails_where_mail_cannot_be_saved_and_can_run_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, "one", "two", "three")
        await node.expunge(1, 2, 3)
        submit, saves = Coordinator.submit, list[ChangeRequest]()

        async def fail_from_the_second_on(coordinator: Coordinator, operation: ChangeRequest) -> Reply:
            saves.append(operation)
            if len(saves) > 1:
                raise UnavailableError("no node can be reached")
            return await submit(coordinator, operation)

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "submit", fail_from_the_second_on)
            failed = await run_task(node, UndeleteOptions(USER, "INBOX"), UndeleteStatus)
        assert (failed.state, failed.error, failed.restored) == ("failed", "no node can be reached", 1)
        assert len(saves) == 1 + undelete_task.BUSY_TRIES
        assert (await undelete(node)).restored == 2
        assert sorted((await node.bodies()).values()) == ["one", "three", "two"]


@pytest.mark.parametrize("failures", [1, 1000])
async def test_undelete_looks_up_a_replaced_folder_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, "one", "two")
        await node.expunge(1, 2)
        submit, saves = Coordinator.submit, list[ChangeRequest]()

        async def folder_was_replaced(coordinator: Coordinator, operation: ChangeRequest) -> Reply:
            saves.append(operation)
            if len(saves) <= failures:
                raise FolderNotFoundError("the folder has been replaced by another one; open it again")
            return await submit(coordinator, operation)

        monkeypatch.setattr(Coordinator, "submit", folder_was_replaced)
        status = await run_task(node, UndeleteOptions(USER, "INBOX"), UndeleteStatus)
        if failures == 1:
            assert (status.state, status.restored) == ("done", 2)
        else:
            assert (status.state, status.restored, len(saves)) == ("failed", 0, undelete_task.TRIES)
            assert "again and again" in str(status.error)


async def test_undelete_of_an_unknown_folder_fails(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        status = await run_task(nodes["dc1"], UndeleteOptions(USER, "Nowhere"), UndeleteStatus)
        assert (status.state, status.error) == (
            "failed",
            "this node knows no folder 'Nowhere' of alice, present or past",
        )


async def test_undelete_lists_a_limited_number_of_messages(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undelete_task, "LISTED_MAX", 2)
    monkeypatch.setattr(undelete_task, "SLICE", 2)
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await save_some(node, *"abcde")
        await node.expunge(*range(1, 6))
        status = await run_task(node, UndeleteOptions(USER, "INBOX"), UndeleteStatus)
        assert (status.restored, len(status.messages), status.left_out) == (5, 2, 3)


async def test_mail_expunged_on_another_branch_comes_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The undeleting node never showed the branch on which the mail was expunged."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("common")
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        await nodes["dc1"].save("at dc1")
        await nodes["dc2"].save("came and went")
        await nodes["dc2"].expunge(1, 2)
        nodes.rejoin("dc2")
        await nodes.linked()
        await nodes.converged()
        assert list((await nodes["dc1"].bodies()).values()) == ["at dc1"]
        assert (await undelete(nodes["dc1"])).restored == 2
        await nodes.converged()
        assert sorted((await nodes["dc2"].bodies()).values()) == ["at dc1", "came and went", "common"]
        assert (await undelete(nodes["dc2"])).restored == 0
