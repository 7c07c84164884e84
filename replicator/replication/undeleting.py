"""`replicator undelete`: mail that was expunged comes back, as new mail of its old GUID (design section 6).

Each message goes the way of any that is saved, so all nodes get it, and clients see it come. What the user still has is
left: a move expunges, too. So it can be done again, also by another node, and after an end in between.
"""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

import trio

from protocol.codec import ProtocolError
from protocol.commands import Parts
from replicator.environment import Environment
from replicator.errors import ContentUnavailableError, FolderExistsError, FolderNotFoundError
from replicator.replication.coordinator import Coordinator
from replicator.replication.operations import CreateOperation, SaveOperation
from replicator.replication.tasks import TaskError
from replicator.store import expunged, reading
from replicator.store.content import StoredText, read_text
from replicator.store.expunged import After, Kept
from replicator.store.reading import MailboxKey
from replicator.store.store import Store
from replicator.tasks import Undeleted, UndeleteOptions, UndeleteStatus

SLICE = 500  # messages of one look
LISTED_MAX = 10_000  # messages: 2 MiB of JSON
FETCH_TIMEOUT_S = 30.0  # of one text, from all neighbours
TRIES, TRY_AGAIN_S = 20, 0.5  # of a folder that becomes another one meanwhile

DELETED = "\\deleted"
PRESENT, TEXTLESS = "it is in the folder", "no node that can be reached has its text"


class _Sight(NamedTuple):
    """What the user has, as of one moment: the folder, and which mailboxes have a message."""

    folder: MailboxKey | None
    having: list[bytes]
    names: str  # of other folders that have it


class Undelete:
    """See `Job`."""

    def __init__(
        self, options: UndeleteOptions, store: Store, coordinator: Coordinator, environment: Environment
    ) -> None:
        self.status = UndeleteStatus(
            task="undelete", rate=None, user=options.user, mailbox=options.mailbox, since_ms=options.since_ms,
            dry_run=options.dry_run,
        )  # fmt: skip
        self._user, self._mailbox = options.user, options.mailbox
        self._since_ms = 0 if options.since_ms is None else options.since_ms
        self._store = store
        self._coordinator = coordinator
        self._environment = environment

    async def run(self) -> None:
        """The oldest first. Raises TaskError, MailError or sqlite3.Error; what has come back stays."""
        named = partial(expunged.mailboxes_named, user=self._user, name=self._mailbox)
        mailbox_ids = await self._store.read(named)
        if not mailbox_ids:
            raise TaskError(f"{self._user} has and had no folder {self._mailbox!r} here")
        status = self.status
        status.total = await self._store.read(partial(expunged.count, mailbox_ids=mailbox_ids, since_ms=self._since_ms))
        after: After | None = None
        query = partial(expunged.kept, mailbox_ids=mailbox_ids, since_ms=self._since_ms, count=SLICE)
        while some := await self._store.read(partial(query, after=after)):
            for kept in some:
                self._note(kept, await self._bring_back(kept))
            after = some[-1].after
        status.total = status.done

    async def _bring_back(self, kept: Kept) -> str | None:
        """Why it was left, if it was. Raises MailError, TaskError."""
        sight = await self._store.read(partial(_sight, user=self._user, name=self._mailbox, guid=kept.guid))
        if sight.folder is not None and sight.folder.mailbox_id in sight.having:
            self.status.present += 1
            return PRESENT
        if sight.having:
            self.status.elsewhere += 1
            return f"the user has it in {sight.names}"
        message = await self._message(kept.content_hash)
        if message is None or not await self._save(kept, message):
            self.status.textless += 1
            return TEXTLESS
        self.status.restored += 1
        self.status.restored_bytes += kept.size_bytes
        return None

    async def _save(self, kept: Kept, message: bytes | Parts) -> bool:
        """Whether its text is whole, if need be with what other nodes have of it. Raises MailError, TaskError."""
        if await self._save_taken(kept, message):
            return True
        if not await self._coordinator.texts.heal(kept.content_hash):
            return False
        healed = await self._store.read(partial(read_text, content_hash=kept.content_hash))
        return healed is not None and await self._save_taken(kept, healed)

    async def _save_taken(self, kept: Kept, message: bytes | Parts) -> bool:
        async with AsyncExitStack() as taking:
            try:
                taken = await taking.enter_async_context(self._coordinator.texts.taker.taking([message]))
            except (ProtocolError, ContentUnavailableError):
                return False
            for stored in taken:
                if not self.status.dry_run:
                    await self._submit(kept, stored)
            return bool(taken)

    async def _submit(self, kept: Kept, stored: StoredText) -> None:
        flags = tuple(flag for flag in kept.flags if flag.lower() != DELETED)
        for _ in range(TRIES):
            key = await self._folder()
            try:
                await self._coordinator.submit(SaveOperation(key, kept.guid, kept.received_ms, flags, stored))
            except FolderNotFoundError:  # its master knows already that it is another one
                await trio.sleep(TRY_AGAIN_S)
            else:
                return
        raise TaskError(f"the folder {self._mailbox!r} becomes another one again and again; try again later")

    async def _folder(self) -> MailboxKey:
        """The folder, which is created if it is not there any more. Raises MailError, TaskError."""
        find = partial(reading.folder, user=self._user, name=self._mailbox)
        record = await self._store.read(find)
        if record is None:
            mailbox_id, new_id = self._environment.new_guid(), self._environment.new_guid
            try:
                await self._coordinator.submit(CreateOperation(self._user, self._mailbox, mailbox_id, new_id))
            except FolderExistsError:
                await trio.sleep(TRY_AGAIN_S)  # somebody has just created it
            record = await self._store.read(find)
        if record is None:
            raise TaskError(f"the folder {self._mailbox!r} is deleted as soon as it is created; try again later")
        return record.key(self._user)

    async def _message(self, content_hash: bytes) -> bytes | Parts | None:
        """The text, which comes from another node if it is damaged or missing here. Raises MailError."""
        read = partial(read_text, content_hash=content_hash)
        message = await self._store.read(read)
        if message is None:
            with trio.move_on_after(FETCH_TIMEOUT_S):
                if await self._coordinator.texts.heal(content_hash):
                    message = await self._store.read(read)
        return message

    def _note(self, kept: Kept, why_not: str | None) -> None:
        self.status.count(1)
        if len(self.status.messages) >= LISTED_MAX:
            self.status.left_out += 1
            return
        self.status.messages.append(
            Undeleted(kept.guid.hex(), kept.uid, kept.received_ms, kept.expunged_ms, kept.size_bytes, why_not)
        )


def _sight(connection: sqlite3.Connection, user: str, name: str, guid: bytes) -> _Sight:
    record = reading.folder(connection, user, name)
    having = expunged.mailboxes_with(connection, user, guid)
    names = [reading.folder_name(connection, mailbox_id) or mailbox_id.hex() for mailbox_id in having]
    return _Sight(record.key(user) if record else None, having, ", ".join(map(repr, sorted(names))))
