"""Abandons entries that can never be applied, after saving the mail and folders that they add (design section 7).

An entry needs its predecessor. After a disk was lost or replaced by an older copy, no node may have the predecessor or
the state of its branch; then the branch cannot be merged. The node that finds such entries saves their mail under its
GUID, so that each message exists once, and creates their folders. Their other changes name UIDs of an unknown state and
are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from protocol.commands import Reply
from protocol.values import Context, Dot
from replicator.errors import FolderExistsError, InvalidNameError, MailboxFullError
from replicator.mail.mailstore import INBOX
from replicator.replication.bodies import Bodies
from replicator.replication.writes.requests import ChangeRequest, CreateRequest, SaveRequest
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.gc import expunged
from replicator.store.log import apply
from replicator.store.store import Store
from resync.entry import Entry, FolderCreate, MailAdd
from resync.salvage import branches_of, folders_left, mail_left

log = logging.getLogger(__name__)

Submit = Callable[[ChangeRequest], Awaitable[Reply]]
"""The signature of `Coordinator.carry_out`."""


class Salvaged(NamedTuple):
    """Result of trying to abandon entries.

    `brought` and `not_brought` count the messages and folders that were and were not saved again. If any were not, the
    entries go on waiting; otherwise they are abandoned, and `changes` counts their other changes, which are lost.
    """

    brought: int
    not_brought: int
    changes: int

    @property
    def are_abandoned(self) -> bool:
        """True if the entries no longer wait."""
        return not self.not_brought


class AbandonedEntries:
    """The salvage of entries that can never be applied. Belongs to the event loop."""

    def __init__(self, store: Store, bodies: Bodies, submit: Submit, new_id: Callable[[], bytes]) -> None:
        self._store = store
        self._bodies = bodies
        self._submit = submit
        self._new_id = new_id

    async def abandon(self, key: MailboxKey, dots: Sequence[Dot]) -> Salvaged:
        """Save the mail and folders of these entries again; abandon the entries unless something could not be saved.

        Raises MailError if that is impossible now; the entries then go on waiting.
        """
        entries, seen = await self._store.read(partial(_entries, chain_id=key.mailbox_id, dots=dots))
        branches = branches_of(entries)
        done = [await self._deliver(key, add) for add in mail_left(branches, seen)]
        done += [await self._create(key.user, created) for branch in branches for created in folders_left(branch)]
        others = sum(not isinstance(change, MailAdd | FolderCreate) for entry in entries for change in entry.changes)
        salvaged = Salvaged(done.count(True), done.count(False), others)
        if salvaged.are_abandoned:
            await self._store.write(partial(apply.abandon, chain_id=key.mailbox_id, dots=dots))
        return salvaged

    async def _deliver(self, key: MailboxKey, add: MailAdd) -> bool | None:
        """Save a message again and return True, or False if that failed.

        None: it was here already, was expunged, or is a copy whose body no reachable node has.
        """
        destination = await self._store.read(partial(_destination, key=key))
        if await self._store.read(
            partial(_is_known, guid=add.guid, mailbox_ids=(key.mailbox_id, destination.mailbox_id))
        ):
            return None
        message = await self._bodies.read(add.content_hash)
        if message is None and await self._bodies.bring_back(add.content_hash):
            message = await self._bodies.read(add.content_hash)
        if message is None and add.copied:
            log.warning("a message of %s is lost: no reachable node has its body, %s", key.user, add.content_hash.hex())
            return None
        async with self._bodies.obtain([message]) as taken:
            for stored in taken:
                try:
                    await self._submit(SaveRequest(destination, add.guid, add.received_ms, add.flags, stored))
                except (InvalidNameError, MailboxFullError) as error:
                    log.warning("cannot save a message of %s again: %s", key.user, error)
                    return False
                return True
        text = add.content_hash.hex()
        log.warning("cannot save a message of %s again: no reachable node has its whole body, %s", key.user, text)
        return False

    async def _create(self, user: str, created: FolderCreate) -> bool | None:
        """Create a folder again and return True, or False if that failed. None: it was here already, or was deleted."""
        if await self._store.read(partial(queries.folder_name, mailbox_id=created.mailbox_id)) is not None:
            return None
        another = f"{created.name} {created.mailbox_id.hex()[-8:]}"  # an id begins with the time, which others share
        for name in (created.name, another):
            try:
                await self._submit(CreateRequest(user, name, created.mailbox_id, self._new_id))
            except (FolderExistsError, InvalidNameError, MailboxFullError) as error:
                log.warning("folder %r of %s cannot be created again: %s", name, user, error)
                continue
            return True
        return False


def _entries(connection: Connection, chain_id: bytes, dots: Iterable[Dot]) -> tuple[list[Entry], Context]:
    """Return the entries that can be read, and the context of their mailbox or tree."""
    chain = chains.load(connection, chain_id)
    found = (queries.entry_at(connection, dot) for dot in dots)
    return [entry for entry in found if entry is not None], chain.context if chain is not None else {}


def _destination(connection: Connection, key: MailboxKey) -> MailboxKey:
    """Return the mailbox if its folder is visible, else the visible folder of the same name, else INBOX."""
    here = queries.folders_in_sight(connection, key.user)
    name = queries.folder_name(connection, key.mailbox_id)
    named = [record for record in here if record.name == name]
    inbox = [record for record in here if record.name == INBOX]
    for record in (*(one for one in here if one.mailbox_id == key.mailbox_id), *reversed(named), *reversed(inbox)):
        return record.key(key.user)
    return key


def _is_known(connection: Connection, guid: bytes, mailbox_ids: Iterable[bytes]) -> bool:
    return any(
        queries.uid_of_guid(connection, guid, mailbox_id) is not None or expunged.is_kept(connection, mailbox_id, guid)
        for mailbox_id in mailbox_ids
    )
