"""The promises of design section 3 in inconvenient situations."""

import sqlite3
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Who
from protocol.values import UidSet
from replicator.config import ContentConfig
from replicator.errors import FolderNotFoundError, InvalidNameError, UnavailableError
from replicator.mail.mailstore import INBOX
from replicator.replication import timing
from replicator.replication.bodies.upkeep.orphan_sweep import OrphanSweep
from replicator.replication.mastership.elections import SCOPE_MAX_BYTES
from replicator.replication.writes.requests import DeleteRequest, ExpungeRequest
from replicator.store.db.queries import MailboxKey
from tests.replication.cluster import HEARTBEAT_S, TIMEOUT_S, cluster
from tests.replication.stranger import visit

SEEN = frozenset({"\\Seen"})


async def test_change_without_effect_is_answered_when_the_earlier_one_is_durable(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes, trio.open_nursery() as nursery:
        node = nodes["dc1"]
        await node.save("x")
        view = await node.view()
        for other in ("dc2", "dc3"):
            nodes.network.road(other, "dc1").hold()
        done: list[str] = []

        async def flag(client: str) -> None:
            await node.mail.store_flags(view, UidSet.of([1]), added=SEEN)
            done.append(client)

        nursery.start_soon(flag, "first")
        nursery.start_soon(flag, "second, which finds nothing to do")
        await trio.sleep(TIMEOUT_S / 2)
        assert view.messages[1].flags == SEEN
        assert not done
        for other in ("dc2", "dc3"):
            nodes.network.road(other, "dc1").release()
        await trio.sleep(TIMEOUT_S)
        assert len(done) == 2


async def test_third_copy_may_be_two_links_away(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=3) as nodes:
        await nodes.make_line()
        assert await nodes["dc1"].save("first") == 1
        saved: list[int] = []

        async def save() -> None:
            saved.append(await nodes["dc1"].save("second"))

        async with trio.open_nursery() as nursery:
            nodes.network.road("dc3", "dc2").hold()
            nursery.start_soon(save)
            await trio.sleep(TIMEOUT_S / 2)
            assert not saved
            nodes.network.road("dc3", "dc2").release()
            await trio.sleep(2 * HEARTBEAT_S)
            assert saved == [2]


async def test_save_succeeds_at_a_node_that_never_applies_the_entry(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc3"]
        await nodes["dc1"].save("first")
        await nodes.converged()

        async def never(*_: object) -> None:
            await trio.sleep_forever()

        with monkeypatch.context() as patch:
            patch.setattr(node.store, "wait_applied", never)
            with trio.fail_after(timing.REQUEST_TIMEOUT_S):
                assert await node.save("second") == 2


async def test_expunge_waits_until_the_master_has_seen_the_clients_head(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The master may show another mail under that UID: it waits until it has seen the head of the asking node."""
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        inbox = await nodes["dc1"].inbox()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        assert await nodes["dc1"].save("mine") == 2
        assert await nodes["dc2"].save("rival") == 2
        head = (await nodes["dc1"].view()).head
        key = (await nodes["dc2"].view()).mailbox_id
        assert key == inbox.mailbox_id
        operation = ExpungeRequest(MailboxKey("alice", key, inbox.uidvalidity), UidSet.of([2]), head)
        with pytest.raises(UnavailableError):
            await nodes["dc2"].coordinator.submit(operation)
        assert (await nodes["dc2"].bodies())[2] == "rival"
        nodes.rejoin("dc1")
        await nodes.linked()
        await nodes.converged()
        await nodes["dc2"].coordinator.submit(operation)
        assert sorted((await nodes["dc2"].bodies()).values()) == ["mine", "rival", "x"]


async def test_failed_folder_delete_keeps_the_mail(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder("alice", "Work")
        await node.save("kept", "Work")
        submit = node.coordinator.submit

        async def fail(operation: object) -> object:
            if isinstance(operation, DeleteRequest):
                raise UnavailableError("not now")
            return await submit(operation)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(node.coordinator, "submit", fail)
            with pytest.raises(UnavailableError):
                await node.mail.delete_folder("alice", "Work")
        assert list((await node.bodies("Work")).values()) == ["kept"]


async def test_deleted_folder_disappears_with_its_last_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        folder = await node.mail.create_folder("alice", "Work")
        await node.save("late", "Work")
        view = await node.view("Work")
        await node.coordinator.submit(DeleteRequest("alice", folder.mailbox_id))
        assert (await node.mail.folder("alice", "Work")).mailbox_id == folder.mailbox_id
        await node.mail.expunge(view, UidSet.of([1]))
        assert view.deleted
        with pytest.raises(FolderNotFoundError):
            await node.mail.folder("alice", "Work")


async def test_inbox_renames_below_itself_and_too_deep_names_are_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("old")
        await node.mail.rename_folder("alice", INBOX, "INBOX/old")
        assert list((await node.bodies("INBOX/old")).values()) == ["old"]
        assert await node.bodies() == {}
        await node.mail.create_folder("alice", "/".join(["a"] * 20))
        with pytest.raises(InvalidNameError):
            await node.mail.rename_folder("alice", "a", "/".join(["b"] * 20))


async def test_too_long_scope_ends_the_link_and_not_the_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        async with visit(nodes) as stranger:
            await stranger.send(Who(1, "user:" + "x" * SCOPE_MAX_BYTES, "dc1"), "a")
            assert await stranger.ended()
        assert await nodes["dc2"].save("x") == 1


async def test_node_lives_on_while_its_database_cannot_be_opened_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For instance for want of file descriptors: retention, sweeps and checkpoints open a connection each."""

    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    content = ContentConfig(keep_expunged_s=10)
    async with cluster(tmp_path, autojump_clock, 1, content=content) as nodes, trio.open_nursery() as nursery:
        node = nodes["dc1"]
        nursery.start_soon(OrphanSweep(node.store).run)
        await node.save("expunged")
        await node.mail.expunge(await node.view(), UidSet.of([1]))
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", refuse)
            await trio.sleep(timing.ORPHAN_SWEEP_FIRST_S + 10)
            with pytest.raises(UnavailableError, match="unable to open database file"):
                await node.coordinator.log_truncation.checkpoint_now()
        for what in ("remove expired mail now", "look for orphaned attachments", "write checkpoints"):
            assert f"cannot {what}" in caplog.text
        failures = [record for record in caplog.records if "unable to open database file" in record.getMessage()]
        assert failures[0].exc_info
        assert await node.save("next") == 2
        await node.coordinator.log_truncation.checkpoint_now()
        nursery.cancel_scope.cancel()
