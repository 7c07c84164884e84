"""The mail store of the cluster: mailboxes and bodies here, put together with the operations of the other modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import trio

from protocol.values import UID_MAX, UidSet
from replicator.errors import ContentUnavailableError, InvalidNameError
from replicator.mail.listing import Listing
from replicator.mail.lookup import SeenMessages, seen
from replicator.mail.mailstore import INBOX, BodyReader, CopiedMessages, Folder, Quota, SearchTextSlice, StoreResult
from replicator.mail.view import MailboxView, Message
from replicator.replication import timing
from replicator.replication.cluster_mail_store.saving import SaveOperations
from replicator.replication.cluster_mail_store.synchronization import SyncOperations
from replicator.replication.coordinator import Coordinator
from replicator.replication.writes.quotas import Quotas
from replicator.replication.writes.requests import DeleteRequest
from replicator.replication.writes.seen_changes import SeenChanges
from replicator.runtime.environment import Environment
from replicator.store.db import queries
from replicator.store.db.chain import Usage
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows import recent
from replicator.store.db.transaction import Transaction
from replicator.store.gc import expunged
from replicator.store.store import Store

DELETED_AT_ONCE = 500
"""Messages of a listing that are read as a view, to be expunged: 350 KiB."""


class ClusterMailStore(SaveOperations, SyncOperations):
    """The mail store of the cluster, see `MailStore` and `CoreMailStore`. Belongs to the event loop."""

    changes_type = SeenChanges

    def __init__(
        self, store: Store, coordinator: Coordinator, environment: Environment, quotas: Quotas | None = None
    ) -> None:
        """Create the mail store; without `quotas`, users may store anything."""
        super().__init__(store, coordinator, environment, quotas or Quotas(store.usage))
        self.changes = self.changes_type(coordinator.submit, self._uid_retry, self._quotas, environment.new_guid)

    async def wait_ready(self) -> None:
        """See `MailStore`."""
        await self._coordinator.admission.wait()

    async def delete_folder(self, user: str, name: str) -> None:
        """See `MailStore`. Removes the mail that this node has seen; a folder that holds more stays."""
        if name == INBOX:
            raise InvalidNameError("INBOX cannot be deleted")
        folder = await self.folder(user, name)
        shown = await self._seen(await self.open_mailbox(folder), UidSet.of_ranges([(1, UID_MAX)]))
        await self._delete(folder)
        await self.changes.expunge(shown)

    async def delete_seen(self, folder: Folder, seen: Listing) -> None:
        """See `CoreMailStore`. A merge that adds to the placements of a message gives it another UID: then it stays."""
        await self._delete(folder)
        for first in range(0, len(seen), DELETED_AT_ONCE):
            some = seen[first : first + DELETED_AT_ONCE]
            guids = {message.uid: message.guid for message in some}
            view = await self.part_of(folder, UidSet.of(guids))
            same = (uid for uid, message in view.messages.items() if message.guid == guids[uid])
            await self.expunge(view, UidSet.of(same))

    async def _delete(self, folder: Folder) -> None:
        """Delete a folder, before its mail: after a failure in between it stays visible with its mail, not without."""
        await self._coordinator.submit(DeleteRequest(folder.user, folder.mailbox_id))

    async def quota(self, user: str) -> Quota:
        """See `MailStore`."""
        return await self._quotas.quota(user)

    async def check_quota(self, user: str, messages: int, size_bytes: int) -> None:
        """See `MailStore`."""
        await self._quotas.check(user, Usage(messages, size_bytes))

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        """See `MailStore`."""
        await self.wait_mailbox(folder)
        return await self._store.view(MailboxKey.of(folder))

    async def wait_mailbox(self, folder: Folder) -> None:
        """Return once this node may show the mailbox. Raises NotReadyError."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))

    async def claim_recent(self, view: MailboxView) -> int:
        """See `MailStore`. Writes only if a message has come since the last session claimed: most SELECTs need not."""
        if view.uidnext <= view.recent_from:
            return view.recent_from

        def claim(tx: Transaction) -> tuple[int, int]:
            chain = tx.chain(view.mailbox_id)
            uidnext = chain.uidnext if chain else 1
            return recent.claim(tx.connection, view.mailbox_id, uidnext), uidnext

        first, claimed = await self._store.write(claim)
        view.recent_from = max(view.recent_from, claimed)
        return first

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """See `MailStore`."""
        return await self.changes.copy(await self._seen(source, uids), destination)

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """See `MailStore`."""
        return await self.changes.move(await self._seen(source, uids), destination)

    async def store_flags(
        self,
        mailbox: MailboxView,
        uids: UidSet,
        *,
        added: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
        unchanged_since: int | None = None,
    ) -> StoreResult:
        """See `MailStore`."""
        return await self.changes.store_flags(await self._seen(mailbox, uids), added, removed, unchanged_since)

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        """See `MailStore`."""
        await self.changes.expunge(await self._seen(mailbox, uids))

    async def _seen(self, view: MailboxView, uids: UidSet) -> SeenMessages:
        return await seen(view, uids, self._environment.run_in_thread)

    async def read_body(self, message: Message) -> BodyReader:
        """See `MailStore`."""
        return await self._body(message.content_hash)

    async def body_of(self, folder: Folder, guid: bytes) -> BodyReader | None:
        """See `CoreMailStore`."""
        await self.wait_mailbox(folder)
        content_hash = await self._store.read(partial(_content_hash, mailbox_id=folder.mailbox_id, guid=guid))
        return None if content_hash is None else await self._body(content_hash)

    async def _body(self, content_hash: bytes) -> BodyReader:
        """Return a body. One that is missing or damaged here is fetched from another node and kept."""
        body = await self._bodies.open(content_hash)
        if body is None:
            with trio.move_on_after(timing.BODIES_PATIENCE_S):
                body = await self._bodies.fetch_to_read(content_hash)
        if body is None:
            raise ContentUnavailableError("the body of this message is at no reachable node; try later")
        return body

    async def read_bodies(self, messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
        """See `MailStore`."""
        return await self._bodies.open_small([message.content_hash for message in messages], max_bytes)

    async def outlines(self, messages: Iterable[Message], version: int) -> Mapping[bytes, bytes]:
        """See `MailStore`."""
        return await self._bodies.outlines([message.content_hash for message in messages], version)

    async def search_texts(self, messages: Sequence[Message]) -> SearchTextSlice:
        """See `MailStore`."""
        return await self._bodies.search_texts.of([message.content_hash for message in messages])

    async def check_search_texts(self, hashes: Sequence[bytes]) -> None:
        """Have search texts made anew if those of these bodies are damaged, as a door has found."""
        await self._bodies.search_texts.check(hashes)


def _content_hash(connection: queries.Connection, mailbox_id: bytes, guid: bytes) -> bytes | None:
    one = queries.row_of_guid(connection, guid, mailbox_id) or expunged.kept_one(connection, mailbox_id, guid)
    return None if one is None else one.content_hash
