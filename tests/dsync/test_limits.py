"""What masters say that no Dovecot would: too much, too large, out of range. Other mail is synced all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.values import UID_MAX
from replicator.dsync.wire.items import ChangeType, Mail, Mailbox, MailChange, TreeNode
from resync.folder_tree import UIDVALIDITY_MAX
from resync.state import MERGE_HEADROOM, RAISED_MODSEQ_MAX
from tests.dsync.scripted import scripted_master
from tests.dsync.sides import USER, node_replicas
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
async def test_a_folder_with_odd_numbers_is_left_out(tmp_path: Path, work: Mailbox) -> None:
    async with one_node(tmp_path) as mail, scripted_master(node_replicas(mail, now_ms)) as master:
        other = numbers(OTHER)
        await master.folders([node("Work", work), node("Other", other)])
        assert (await master.mailbox(work, CHANGES)).own.lost
        assert not (await master.mailbox(other, CHANGES)).own.lost
        assert (await master.finish()).error is None
        assert (len(await mail.bodies(USER, "Work")), len(await mail.bodies(USER, "Other"))) == (0, 1)
        assert (await mail.status(await mail.folder(USER, "Work"))).uidnext == 1
