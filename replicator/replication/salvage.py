"""What entries brought that can never be applied: saved anew, and the rest abandoned with a word (design section 7).

An entry stands on another one. Where a disk was lost, or came back as an older copy, that one may be nowhere any more,
and neither may what its branch showed: then no merge can be made of it. Mail that it added is saved under its GUID, by
whoever finds it, so that it is there once; folders that it created are created. What it changed otherwise named UIDs of
a state that nobody knows.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from protocol.commands import Reply
from protocol.values import Dot
from replicator.errors import FolderExistsError, InvalidNameError, MailboxFullError
from replicator.mailstore import INBOX
from replicator.replication.operations import CreateOperation, Operation, SaveOperation
from replicator.replication.texts import Texts
from replicator.store import apply, expunged, reading
from replicator.store.content import read_text
from replicator.store.reading import MailboxKey
from replicator.store.store import Store
from resync.entry import (
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    FolderRename,
    MailAdd,
    MailDel,
    Merge,
)
from resync.row import Row

log = logging.getLogger(__name__)

Submit = Callable[[Operation], Awaitable[Reply]]
"""As `Coordinator.carry_out`."""


class Salvaged(NamedTuple):
    """How many messages and folders were brought again, how many could not be, and how many other changes are lost."""

    brought: int
    lost: int
    changes: int


class Salvage:
    """Belongs to the event loop."""

    def __init__(self, store: Store, texts: Texts, submit: Submit, new_id: Callable[[], bytes]) -> None:
        self._store = store
        self._texts = texts
        self._submit = submit
        self._new_id = new_id
        self.entries = 0  # that were abandoned since the node started

    async def abandon(self, key: MailboxKey, dots: Sequence[Dot]) -> Salvaged:
        """Bring again what can be, and let none of these entries wait any more, unless mail of them is lost thereby.

        Raises MailError or sqlite3.Error if that cannot be done now: then they wait still.
        """
        entries = await self._store.read(partial(_entries, dots=dots))
        brought = lost = 0
        for branch in _branches(entries):
            for add in _mail_left(branch):
                done = await self._deliver(key, add)
                brought, lost = brought + (done is True), lost + (done is False)
            for created in _folders_left(branch):
                brought += await self._create(key.user, created)
        if not lost:
            await self._store.write(partial(apply.abandon, chain_id=key.mailbox_id, dots=dots))
            self.entries += len(dots)
        others = sum(not isinstance(change, MailAdd | FolderCreate) for entry in entries for change in entry.changes)
        return Salvaged(brought, lost, others)

    async def _deliver(self, key: MailboxKey, add: MailAdd) -> bool | None:
        """Whether the message is there now; None: it was, or has been expunged, or its text is nowhere."""
        destination = await self._store.read(partial(_destination, key=key))
        if await self._store.read(
            partial(_is_known, guid=add.guid, mailbox_ids=(key.mailbox_id, destination.mailbox_id))
        ):
            return None
        message = await self._store.read(partial(read_text, content_hash=add.content_hash))
        if message is None and await self._texts.bring_back(add.content_hash):
            message = await self._store.read(partial(read_text, content_hash=add.content_hash))
        if message is None and add.copied:
            log.warning("a message of %s is lost: no node in reach has its text, %s", key.user, add.content_hash.hex())
            return None
        async with self._texts.taker.taking([] if message is None else [message]) as taken:
            for stored in taken:
                try:
                    await self._submit(SaveOperation(destination, add.guid, add.received_ms, add.flags, stored))
                except (InvalidNameError, MailboxFullError) as error:
                    log.warning("a message of %s cannot be delivered again: %s", key.user, error)
                    return False
            return bool(taken)

    async def _create(self, user: str, created: FolderCreate) -> bool:
        """Whether the folder is there now, and was not."""
        if await self._store.read(partial(reading.folder_name, mailbox_id=created.mailbox_id)) is not None:
            return False
        for name in (created.name, f"{created.name} {created.mailbox_id.hex()[:8]}"):
            try:
                await self._submit(CreateOperation(user, name, created.mailbox_id, self._new_id))
            except (FolderExistsError, InvalidNameError):
                continue
            return True
        return False


def _entries(connection: sqlite3.Connection, dots: Iterable[Dot]) -> list[Entry]:
    """Those that can be read, one after the other in their history."""
    found = (reading.entry_at(connection, dot) for dot in dots)
    return sorted((entry for entry in found if entry is not None), key=lambda entry: (entry.modseq, entry.dot))


def _branches(entries: Iterable[Entry]) -> list[list[Change]]:
    """The changes of each branch, which knows nothing of the UIDs of others."""
    branch_of: dict[Dot, list[Change]] = {}
    found: list[list[Change]] = []
    for entry in entries:
        branch = next((branch_of[dot] for dot in entry.predecessors if dot in branch_of), None)
        if branch is None:
            branch = []
            found.append(branch)
        branch += entry.changes
        branch_of[entry.dot] = branch
    return found


def _mail_left(changes: Iterable[Change]) -> list[MailAdd]:
    """The mail that a branch adds, with the flags that it leaves it, without what it expunges."""
    by_uid: dict[int, MailAdd] = {}
    for change in changes:
        match change:
            case MailAdd():
                by_uid[change.uid] = change
            case Merge(rows=rows):
                by_uid |= {row.uid: _add_of(row) for row in rows}
            case MailDel(uids):
                by_uid = {uid: add for uid, add in by_uid.items() if uid not in uids}
            case FlagAdd(uids, flags):
                by_uid |= {uid: _flagged(by_uid[uid], {*by_uid[uid].flags, *flags}) for uid in by_uid if uid in uids}
            case FlagDel(uids, flags):
                by_uid |= {uid: _flagged(by_uid[uid], {*by_uid[uid].flags} - {*flags}) for uid in by_uid if uid in uids}
            case _:
                pass
    return list(by_uid.values())


def _add_of(row: Row) -> MailAdd:
    flags = tuple(sorted(row.visible_flags()))
    return MailAdd(row.uid, row.guid, row.received_ms, flags, row.size_bytes, row.content_hash, copied=True)


def _flagged(add: MailAdd, flags: set[str]) -> MailAdd:
    return add._replace(flags=tuple(sorted(flags)))


def _folders_left(changes: Iterable[Change]) -> list[FolderCreate]:
    """The folders that a branch creates, under their last names, without those that it deletes."""
    by_id: dict[bytes, FolderCreate] = {}
    for change in changes:
        match change:
            case FolderCreate():
                by_id[change.mailbox_id] = change
            case FolderRename(mailbox_id, name) if mailbox_id in by_id:
                by_id[mailbox_id] = by_id[mailbox_id]._replace(name=name)
            case FolderDelete(mailbox_id):
                by_id.pop(mailbox_id, None)
            case _:
                pass
    return list(by_id.values())


def _destination(connection: sqlite3.Connection, key: MailboxKey) -> MailboxKey:
    """The mailbox if its folder is in sight, or the folder that has its name, or INBOX."""
    here = reading.folders_in_sight(connection, key.user)
    name = reading.folder_name(connection, key.mailbox_id)
    named = [record for record in here if record.name == name]
    inbox = [record for record in here if record.name == INBOX]
    for record in (*(one for one in here if one.mailbox_id == key.mailbox_id), *reversed(named), *reversed(inbox)):
        return record.key(key.user)
    return key


def _is_known(connection: sqlite3.Connection, guid: bytes, mailbox_ids: Iterable[bytes]) -> bool:
    return any(
        reading.placement(connection, guid, mailbox_id) is not None or expunged.is_kept(connection, mailbox_id, guid)
        for mailbox_id in mailbox_ids
    )
