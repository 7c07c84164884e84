"""Delivers mail again that only a damaged database has and that cannot arrive by a log (design section 11).

Each message keeps its GUID, so that it exists once even if it is delivered twice, or the lost entries are found later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from protocol.commands import Parts
from replicator.errors import FolderNotFoundError, InvalidNameError, MailboxFullError, MailError
from replicator.mail.mailstore import INBOX, check_folder_name
from replicator.replication.bodies import Keepers
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.writes.requests import SaveRequest
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.repair.damaged_database import DamagedDatabase
from replicator.store.repair.unlogged_mail import UnloggedMail, of_entries, strays
from replicator.store.store import Store
from resync.entry import Entry

log = logging.getLogger(__name__)


class RebuildError(Exception):
    """A failure of the rebuild. The message says why, and what to do."""


class Redelivery:
    """The delivery of mail that only the damaged database has. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        environment: Environment,
        damaged: DamagedDatabase,
        keepers: Keepers,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._environment = environment
        self._damaged = damaged
        self._keepers = keepers
        self._mail = ClusterMailStore(store, coordinator, environment)

    async def run(self, untaken: Iterable[Entry]) -> tuple[int, int]:
        """Deliver mail of these entries, and mail that the damaged mailboxes showed.

        Returns the numbers of messages delivered and of failures. Raises RebuildError.
        """
        added = of_entries(untaken)
        came = await self._environment.run_in_thread(self._damaged.context)
        heads = {chain.id: chain for chain in await self._environment.run_in_thread(self._damaged.mailboxes)}
        for mailbox_id, by_guid in added.items():
            entry, _ = next(iter(by_guid.values()))
            heads.setdefault(mailbox_id, Chain(mailbox_id, entry.user, entry.uidvalidity))
        known = dict(self._store.context)
        delivered = failed = 0
        for chain in heads.values():
            find = partial(strays, self._damaged, chain, added.get(chain.id, {}), known, came)
            for stray in await self._environment.run_in_thread(find):
                done = await self._deliver(stray)
                delivered, failed = delivered + (done is True), failed + (done is False)
        return delivered, failed

    async def _deliver(self, stray: UnloggedMail) -> bool | None:
        """Deliver a message; return True if that worked. None: it is shown already."""
        add = stray.add
        if await self._shows(add.guid, stray.mailbox_id):
            return None
        message = await self._message(add.content_hash)
        async with self._coordinator.bodies.obtain([message], keepers=self._keepers) as taken:
            return await self._save(stray, taken[0]) if taken else False

    async def _save(self, stray: UnloggedMail, stored: StoredBody) -> bool | None:
        add = stray.add
        try:
            key = await self._destination(stray)
            if await self._shows(add.guid, key.mailbox_id):
                return None
            await self._coordinator.submit(SaveRequest(key, add.guid, add.received_ms, add.flags, stored))
        except (InvalidNameError, MailboxFullError) as error:
            log.warning("cannot save a message of %s from the damaged database: %s", stray.user, error)
            return False
        except MailError as error:
            raise RebuildError(f"cannot save mail from the damaged database now: {error}; run this again") from error
        return True

    async def _shows(self, guid: bytes, mailbox_id: bytes) -> bool:
        return await self._store.read(partial(queries.uid_of_guid, guid=guid, mailbox_id=mailbox_id)) is not None

    async def _message(self, content_hash: bytes) -> bytes | Parts | None:
        message = await self._environment.run_in_thread(partial(self._damaged.body, content_hash))
        if message is None:
            message = await self._coordinator.bodies.read(content_hash)
        return message

    async def _destination(self, stray: UnloggedMail) -> MailboxKey:
        """Return the message's mailbox, else the folder of the same name, else INBOX if the name is unknown.

        Raises MailError.
        """
        here = await self._store.read(partial(queries.folders_in_sight, user=stray.user))
        for record in here:
            if record.mailbox_id == stray.mailbox_id:
                return record.key(stray.user)
        name = await self._store.read(partial(queries.folder_name, mailbox_id=stray.mailbox_id))
        name = (
            name or await self._environment.run_in_thread(partial(self._damaged.folder_name, stray.mailbox_id)) or INBOX
        )
        try:
            check_folder_name(name)
            folder = await self._mail.folder(stray.user, name)
        except InvalidNameError:
            folder = await self._mail.folder(stray.user, INBOX)
        except FolderNotFoundError:
            folder = await self._mail.create_folder(stray.user, name)
        return MailboxKey.of(folder)
