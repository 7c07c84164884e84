"""What masters say that no Dovecot would: too much, too large, out of range. Other mail is synced all the same."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from protocol.values import UID_MAX
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.node_mail.last_syncs import LastSyncFiles
from replicator.dsync.node_mail.mail_replica import MailReplicas
from replicator.dsync.wire.items import ChangeType, Mail, Mailbox, MailChange, TreeNode
from replicator.mail.scratch import Scratch
from replicator.replication.writes.quotas import Quotas
from replicator.store.store import Store
from replicator.users import QuotaLimits
from resync.folder_tree import UIDVALIDITY_MAX
from resync.state import MERGE_HEADROOM, RAISED_MODSEQ_MAX
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.scripted import TEXT, scripted_master
from tests.dsync.sides import USER, node_replicas
from tests.limits import limits_by
from tests.one_node import one_node

WORK, OTHER = b"\x0a" * 16, b"\x0b" * 16
GUID = "ab" * 16


def now_ms() -> int:
    return 1_700_000_000_000


def numbers(mailbox_id: bytes) -> Mailbox:
    return Mailbox(mailbox_id, 1_600_000_000, 2, 1, 1, 5)


def node(name: str, box: Mailbox) -> TreeNode:
    return TreeNode((name,), mailbox_id=box.mailbox_id, uidvalidity=box.uidvalidity, uidnext=box.uidnext)


CHANGES = [MailChange(ChangeType.SAVE, 1, GUID, 4)]


@pytest.mark.parametrize("seconds", [2**62, 253_402_300_800])
async def test_dates_that_imap_cannot_show(tmp_path: Path, seconds: int) -> None:
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        work = numbers(WORK)
        await master.folders([node("Work", work)])
        await master.mailbox(work, CHANGES, {GUID: Mail(GUID, 1, seconds, seconds)})
        assert (await master.finish()).error is None
        view = await mail.open_mailbox(await mail.folder(USER, "Work"))
        assert [message.received_ms for message in view.messages.values()] == [253_402_300_799_000]


@pytest.mark.parametrize("uidvalidity", [0, UIDVALIDITY_MAX + 1, 2**32 - 1])
async def test_an_odd_uidvalidity_is_not_taken_over(tmp_path: Path, uidvalidity: int) -> None:
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        work = replace(numbers(WORK), uidvalidity=uidvalidity)
        await master.folders([node("Work", work)])
        found = await master.mailbox(work, CHANGES)
        assert (await master.finish()).error is None
        assert found.own.uidvalidity == (await mail.folder(USER, "Work")).uidvalidity != uidvalidity
        assert found.own.messages > work.messages, "by which the master takes over this side's"
        assert len(await mail.bodies(USER, "Work")) == 1


@pytest.mark.parametrize(
    "work",
    [
        replace(numbers(WORK), uidnext=2**32 - 1),
        replace(numbers(WORK), uidnext=UID_MAX - MERGE_HEADROOM + 1),
        replace(numbers(WORK), highestmodseq=2**63 - 1),
        replace(numbers(WORK), highestmodseq=RAISED_MODSEQ_MAX + 1),
    ],
)
async def test_a_folder_with_odd_numbers_is_left_out(
    tmp_path: Path, work: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        other = numbers(OTHER)
        await master.folders([node("Work", work), node("Other", other)])
        assert (await master.mailbox(work, CHANGES)).own.ignored
        assert not (await master.mailbox(other, CHANGES)).own.ignored
        assert (await master.finish()).error is None
        assert (len(await mail.bodies(USER, "Work")), len(await mail.bodies(USER, "Other"))) == (0, 1)
        assert (await mail.status(await mail.folder(USER, "Work"))).uidnext == 1
    assert 'a folder stays different user=u1 folder=Work reason="its ' in caplog.text


@pytest.mark.parametrize("uidnext", [2, 3])
async def test_a_folder_that_cannot_come_back_is_not_deleted_at_the_master(tmp_path: Path, uidnext: int) -> None:
    """It has mail that the node has never seen, and a name that no folder can have here by now."""
    async with one_node(tmp_path) as mail:
        work = numbers(WORK)
        async with scripted_master(node_replicas(mail, now_ms)) as master:
            await master.folders([node("Work", work)])
            await master.mailbox(work, CHANGES)
            await master.finish()
        await mail.delete_folder(USER, "Work")
        async with scripted_master(node_replicas(mail, now_ms)) as master:
            await master.folders([node("\x07", replace(work, uidnext=uidnext))])
            assert (WORK in master.told.mailboxes) == (uidnext == 2)
            await master.finish()
        assert [folder.name for folder in await mail.folders(USER)] == ["INBOX"]


async def test_folders_that_stay_different_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        boxes = [numbers(number.to_bytes(16)) for number in range(200)]
        await master.folders(node("\x07" * 50_000 + str(number), box) for number, box in enumerate(boxes))
        assert (await master.finish()).error is None
    assert len([one for one in caplog.records if "a folder stays different user=u1 folder=" in one.message]) == 10
    assert sum(len(one.message) for one in caplog.records) < 10_000
    assert 'sync result=different user=u1 reason="200 folders stay different"' in caplog.text


async def test_what_could_not_be_done_with_a_folder_is_told_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        await master.folders([node("\x7fdel", numbers(WORK))])
        assert (await master.finish()).error is None
    why = "it cannot be created: a folder name has no control characters"
    assert f'a folder stays different user=u1 folder="\\u007fdel" reason="{why}"' in caplog.messages
    assert 'sync result=different user=u1 reason="1 folder stays different"' in caplog.messages


async def test_lists_have_room_for_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("replicator.dsync.conversation.peer.LIST_BYTES_MAX", 100_000)
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        work = numbers(WORK)
        await master.folders([node("Work", work)])
        with pytest.raises((DsyncError, PeerGoneError)):
            await master.mailbox(work, [CHANGES[0]._replace(uid=uid) for uid in range(1, 1000)])
        assert await mail.bodies(USER, "Work") == []
    assert "the peer sent more than 1000000 items of the kind MailChange" in caplog.text


async def test_a_mailbox_without_uids_for_all_mails_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("replicator.dsync.conversation.mailbox_sync.UID_MAX", 5)
    replica = MemoryReplica()
    box = replica.create(("Work",), WORK)
    async with scripted_master(lambda _: replica) as master:
        work = replace(numbers(WORK), uidnext=4, messages=3)
        await master.folders([node("Work", work)])
        with pytest.raises((DsyncError, PeerGoneError)):
            await master.mailbox(work, [MailChange(ChangeType.SAVE, uid, f"{uid:032x}", 4) for uid in (1, 2, 3)])
    assert not box.stored
    assert "too few UIDs are left" in caplog.text


async def test_waiting_mails_are_in_a_scratch_file_with_room(tmp_path: Path) -> None:
    """The mail with the first UID comes last, so the others wait."""
    replica = MemoryReplica()
    box = replica.create(("Work",), WORK)
    scratch = tmp_path / "scratch"
    box.scratch = Scratch(lambda: scratch.open("w+b"))
    async with scripted_master(lambda _: replica) as master:
        work = replace(numbers(WORK), uidnext=4, messages=3)
        await master.folders([node("Work", work)])
        changes = [MailChange(ChangeType.SAVE, uid, f"{uid:032x}", 4) for uid in (1, 2, 3)]
        await master.mailbox(work, changes, backwards=True)
        await master.finish()
    assert [*box.stored] == [1, 2, 3]
    assert scratch.stat().st_size == 2 * len(TEXT)
    assert box.checked == (1, len(TEXT))


def no_scratch() -> BinaryIO:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def full_scratch() -> BinaryIO:
    return Path("/dev/full").open("w+b")


def unreadable_scratch() -> BinaryIO:
    return os.fdopen(os.open(".", os.O_WRONLY | os.O_TMPFILE), "w+b")


@pytest.mark.parametrize(
    ("open_scratch", "told"),
    [
        (no_scratch, "the disk of this node takes no more: Disk quota exceeded; try later"),
        (full_scratch, "the disk of this node takes no more: No space left on device; try later"),
        (unreadable_scratch, "the disk of this node cannot be read: Bad file descriptor; try later"),
    ],
)
@pytest.mark.parametrize("text", [TEXT, TEXT + bytes(100_000)], ids=["short", "long"])
async def test_a_disk_that_fails_ends_the_sync_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_scratch: Callable[[], BinaryIO], told: str, text: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.dsync.scripted.TEXT", text)
    replica = MemoryReplica()
    box = replica.create(("Work",), WORK)
    box.scratch = Scratch(open_scratch)
    async with scripted_master(lambda _: replica) as master:
        work = replace(numbers(WORK), uidnext=4, messages=3)
        await master.folders([node("Work", work)])
        changes = [MailChange(ChangeType.SAVE, uid, f"{uid:032x}", 4) for uid in (1, 2, 3)]
        await master.mailbox(work, changes, backwards=True)
        assert (await master.finish()).error == told


async def test_a_full_quota_ends_the_sync_before_the_disk_is_full(tmp_path: Path) -> None:
    def quotas(store: Store) -> Quotas:
        return Quotas(store.usage, limits_by(lambda _: QuotaLimits(storage_bytes=len(TEXT) - 1)))

    scratch = tmp_path / "scratch"
    async with one_node(tmp_path, quotas=quotas) as mail:
        memory = LastSyncFiles(tmp_path / "dovecots")
        replicas = MailReplicas(mail, memory, now_ms, lambda: scratch.open("w+b"))
        async with scripted_master(replicas.of) as master:
            work = replace(numbers(WORK), uidnext=4, messages=3)
            await master.folders([node("Work", work)])
            changes = [MailChange(ChangeType.SAVE, uid, f"{uid:032x}", 4) for uid in (1, 2, 3)]
            state = (await master.mailbox(work, changes, backwards=True)).state
            assert state is not None
            assert (state.last_common_uid, state.last_common_modseq) == (0, 0)
            assert "quota" in ((await master.finish()).error or "")
        assert await mail.bodies(USER, "Work") == []
        assert not scratch.exists()
