"""Changes of more messages than one request has: a thread looks them up, as they were when the client asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from protocol.values import Dot, UidSet
from replicator.mail import lookup
from replicator.mail.listing import Listing
from replicator.mail.mailstore import INBOX, Folder
from replicator.mail.view import Message, ViewChange
from replicator.replication.cluster_mail_store import mail_store
from replicator.replication.writes import seen_changes
from replicator.store.db.queries import FolderRecord
from tests.imap.client import fill
from tests.one_node import one_node

T = TypeVar("T")

ALL = UidSet.of_ranges([(1, 1 << 31)])


@pytest.mark.parametrize(
    ("uids", "in_thread"),
    [
        (UidSet.of(range(1, 11)), False),
        (UidSet.of(range(1, 61, 6)), False),
        (ALL, True),
        (UidSet.of(range(1, 31, 2)), True),
    ],
)
async def test_many_messages_are_looked_up_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uids: UidSet, *, in_thread: bool
) -> None:
    monkeypatch.setattr(lookup, "FOUND_AT_ONCE", 10)
    async with one_node(tmp_path) as mail:
        view = await mail.open_mailbox(await fill(mail, messages=30))
        await mail.expunge(view, UidSet.of([2, 5]))
        expected = [message for message in view.messages.values() if message.uid in uids]
        threads = 0

        async def merge_first(work: Callable[[], T]) -> T:
            nonlocal threads
            threads += 1
            view.apply(ViewChange(view.mailbox_id, view.highestmodseq + 1, view.uidnext, expunged=(1, 3, 7)))
            return work()

        mail._environment = replace(mail._environment, run_in_thread=merge_first)
        assert (await mail._seen(view, uids)).messages == expected
        assert threads == in_thread


async def test_large_changes_reach_all_messages_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_changes, "AT_ONCE", 10)
    monkeypatch.setattr(lookup, "FOUND_AT_ONCE", 10)
    async with one_node(tmp_path) as mail:
        inbox = await fill(mail, messages=30)
        other = await mail.create_folder("alice", "Other")
        view = await mail.open_mailbox(inbox)
        odd = UidSet.of(range(1, 31, 2))
        await mail.store_flags(view, odd, added=frozenset({"$Odd"}))
        assert [*view.by_flag["$Odd"]] == [*odd]
        copied = await mail.copy(view, odd, other)
        assert [source for source, _ in copied.uids] == [*odd]
        await mail.move(view, UidSet.of(range(1, 21)), other)
        assert [*view.messages] == [*range(21, 31)]
        await mail.expunge(await mail.open_mailbox(other), ALL)
        assert (await mail.status(other)).messages == 0
        await mail.delete_folder("alice", "Other")


async def test_a_folder_is_deleted_with_the_messages_that_were_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_store, "DELETED_AT_ONCE", 10)
    async with one_node(tmp_path) as mail:
        await fill(mail, messages=30)
        work = await mail.create_folder("alice", "Work")
        await mail.copy(await mail.open_mailbox(await mail.folder("alice", INBOX)), ALL, work)
        listed = await mail.list_messages(work)
        other = Listing.of(one._replace(guid=bytes(16)) if one.uid == 15 else one for one in listed[:25])
        await mail.delete_seen(work, other)
        assert [*(await mail.open_mailbox(work)).messages] == [15, *range(26, 31)]
        assert (await mail.folder("alice", "Work")).mailbox_id == work.mailbox_id
        await mail.delete_seen(work, listed)
        assert [folder.name for folder in await mail.folders("alice")] == [INBOX]


async def test_many_folders_are_put_in_order_in_the_thread_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_thread = False
    made_in_thread: list[bool] = []

    async def note_thread(work: Callable[[], T]) -> T:
        nonlocal in_thread
        in_thread = True
        try:
            return work()
        finally:
            in_thread = False

    def made(record: FolderRecord, user: str) -> Folder:
        made_in_thread.append(in_thread)
        return Folder(user, record.name, record.mailbox_id, record.uidvalidity)

    async with one_node(tmp_path) as mail:
        for name in ("b", "a", "C"):
            await mail.create_folder("alice", name)
            await mail.subscribe("alice", name, subscribed=True)
        mail._store._readers._run_in_thread = note_thread
        monkeypatch.setattr(FolderRecord, "folder_of", made)
        assert [folder.name for folder in await mail.folders("alice")] == ["INBOX", "C", "a", "b"]
        assert made_in_thread[-4:] == [True] * 4  # after INBOX, which is looked for first
        assert await mail.subscriptions("alice") == ["C", "a", "b"]


def test_messages_are_freed_as_they_are_used_up() -> None:
    messages = [Message(uid, bytes(16), 1, frozenset(), 0, 1, bytes(32), Dot("dc1.1", uid), 0) for uid in range(1, 6)]
    left = [([one.uid for one in some], len(messages)) for some in seen_changes._used_up(messages, 2)]
    assert left == [([1, 2], 5), ([3, 4], 3), ([5], 1)]
    assert messages == []
