"""`replicator undelete`: restores expunged mail as new mail under its old GUID (design section 6).

Each message takes the path of any SAVE, so all nodes get it, and clients see it arrive. Messages that the user still
has somewhere are skipped, since a move expunges, too. So an undelete can be repeated, also at another node or after an
interruption.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import NamedTuple

import trio

from replicator.errors import FolderExistsError, FolderNotFoundError, UnavailableError
from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.tasks.runner import TaskError
from replicator.replication.writes.requests import CreateRequest, SaveRequest
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.gc import expunged
from replicator.store.gc.expunged import After, Kept
from replicator.store.store import Store
from replicator.tasks import Undeleted, UndeleteOptions, UndeleteStatus

log = logging.getLogger(__name__)

SLICE = 500  # messages per read
LISTED_MAX = 10_000  # messages listed: 2 MiB of JSON
TRIES = 20  # for a folder that is replaced meanwhile
BUSY_TRIES = 5  # for a message that is unavailable because its master moves or a neighbour is busy

DELETED = "\\deleted"
PRESENT, NO_BODY = "it is in the folder", "no reachable node has its body"


class _Sight(NamedTuple):
    """The user's copies of a message at one moment: the target folder, and the mailboxes that have the message."""

    folder: MailboxKey | None
    having: list[bytes]
    names: str  # names of the folders that have the message


class UndeleteTask:
    """The job of `replicator undelete`. See `Job`."""

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
        self._submitted: bytes | None = None  # GUID of the last message that was saved, or may have been

    async def run(self) -> None:
        """Restore the oldest messages first. Raises TaskError or MailError; restored messages stay."""
        named = partial(expunged.mailboxes_named, user=self._user, name=self._mailbox)
        mailbox_ids = await self._store.read(named)
        if not mailbox_ids:
            raise TaskError(f"this node knows no folder {self._mailbox!r} of {self._user}, present or past")
        status = self.status
        status.total = await self._store.read(partial(expunged.count, mailbox_ids=mailbox_ids, since_ms=self._since_ms))
        after: After | None = None
        query = partial(expunged.kept, mailbox_ids=mailbox_ids, since_ms=self._since_ms, count=SLICE)
        while some := await self._store.read(partial(query, after=after)):
            for kept in some:
                self._note(kept, await self._bring_back_patiently(kept))
            after = some[-1].after
        status.total = status.done

    async def _bring_back_patiently(self, kept: Kept) -> str | None:
        """Restore a message, retrying if it is unavailable, so that it does not stop all others.

        Raises MailError, TaskError.
        """
        for _ in range(BUSY_TRIES - 1):
            try:
                return await self._bring_back(kept)
            except UnavailableError as error:
                log.info("cannot restore an expunged message yet, trying again: %s", error)
                await trio.sleep(timing.UNDELETE_BUSY_EVERY_S)
        return await self._bring_back(kept)

    async def _bring_back(self, kept: Kept) -> str | None:
        """Restore a message; return why it was skipped, or None. Raises MailError, TaskError."""
        sight = await self._store.read(partial(_sight, user=self._user, name=self._mailbox, guid=kept.guid))
        is_there = sight.folder is not None and sight.folder.mailbox_id in sight.having
        if is_there and kept.guid != self._submitted:
            self.status.present += 1
            return PRESENT
        if not is_there and sight.having:
            self.status.elsewhere += 1
            return f"the user has it in {sight.names}"
        if not is_there and not await self._save(kept):
            self.status.textless += 1
            return NO_BODY
        self.status.restored += 1
        self.status.restored_bytes += kept.size_bytes
        return None

    async def _save(self, kept: Kept) -> bool:
        """Save a message; return False if its body is not whole here or at other nodes. Raises MailError, TaskError.

        In a dry run, only find out whether the body is available.
        """
        bodies = self._coordinator.bodies
        if self.status.dry_run:
            return await bodies.is_to_be_had(kept.content_hash)
        return await self._save_taken(kept) or (
            await bodies.bring_back(kept.content_hash) and await self._save_taken(kept)
        )

    async def _save_taken(self, kept: Kept) -> bool:
        """Save a message; return False if its body is not whole here."""
        bodies = self._coordinator.bodies
        async with bodies.obtain([await bodies.read(kept.content_hash)]) as taken:
            for stored in taken:
                await self._submit(kept, stored)
            return bool(taken)

    async def _submit(self, kept: Kept, stored: StoredBody) -> None:
        flags = tuple(flag for flag in kept.flags if flag.lower() != DELETED)
        for _ in range(TRIES):
            key, self._submitted = await self._folder(), kept.guid
            try:
                await self._coordinator.submit(SaveRequest(key, kept.guid, kept.received_ms, flags, stored))
            except FolderNotFoundError:  # the master already knows that another folder has this name
                await trio.sleep(timing.UNDELETE_FOLDER_EVERY_S)
            else:
                return
        raise TaskError(f"the folder {self._mailbox!r} is replaced again and again; try again later")

    async def _folder(self) -> MailboxKey:
        """Return the folder, created if it no longer exists. Raises MailError, TaskError."""
        find = partial(queries.folder, user=self._user, name=self._mailbox)
        record = await self._store.read(find)
        if record is None:
            mailbox_id, new_id = self._environment.new_guid(), self._environment.new_guid
            try:
                await self._coordinator.submit(CreateRequest(self._user, self._mailbox, mailbox_id, new_id))
            except FolderExistsError:
                await trio.sleep(timing.UNDELETE_FOLDER_EVERY_S)  # a client has just created it
            record = await self._store.read(find)
        if record is None:
            raise TaskError(f"the folder {self._mailbox!r} is deleted as soon as it is created; try again later")
        return record.key(self._user)

    def _note(self, kept: Kept, why_not: str | None) -> None:
        self.status.count(1)
        if len(self.status.messages) >= LISTED_MAX:
            self.status.left_out += 1
            return
        self.status.messages.append(
            Undeleted(kept.guid.hex(), kept.uid, kept.received_ms, kept.expunged_ms, kept.size_bytes, why_not)
        )


def _sight(connection: Connection, user: str, name: str, guid: bytes) -> _Sight:
    record = queries.folder(connection, user, name)
    having = expunged.mailboxes_with(connection, user, guid)
    names = [queries.folder_name(connection, mailbox_id) or mailbox_id.hex() for mailbox_id in having]
    return _Sight(record.key(user) if record else None, having, ", ".join(map(repr, sorted(names))))
