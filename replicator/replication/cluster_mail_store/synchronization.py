"""Operations of the mail store for imports and Dovecot's dsync: `CoreMailStore` without `MailStore`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256

from protocol.values import UidSet
from replicator.errors import FolderNotFoundError, UnavailableError
from replicator.mail.changed_users import ChangedUsers
from replicator.mail.compact_uids import CompactUids
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.last_changes import AnnotationChange, FlagChange, LastChange, TreeChanges
from replicator.mail.listing import Listing
from replicator.mail.mailstore import Folder
from replicator.mail.scratch import Scratch
from replicator.mail.view import MailboxView
from replicator.replication.cluster_mail_store.folders import FolderOperations, tree_of
from replicator.replication.coordinator import Coordinator
from replicator.replication.writes.requests import AnnotateRequest, RaiseRequest, RenumberRequest, check_raises
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from resync.entry import NOWHERE
from resync.node_annotations import FOREIGN_GUID, KEPT_UIDVALIDITY, PURGED, UNDER_WAY, UNFINISHED_SYNC, uid_in

RENUMBERED_MAX = 500  # messages that get other UIDs by one entry


class SyncOperations(FolderOperations):
    """Operations that keep mailboxes of another server, and tell what has changed."""

    async def raise_numbers(self, folder: Folder, uidnext: int, modseq: int) -> None:
        """See `CoreMailStore`."""
        check_neighbours(self._coordinator)
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        await self._coordinator.submit(RaiseRequest(MailboxKey.of(folder), uidnext, modseq))

    async def renumber(self, mailbox: MailboxView, wanted: Mapping[int, int]) -> None:
        """See `CoreMailStore`."""
        check_neighbours(self._coordinator)
        found = [message for uid in sorted(wanted) if (message := mailbox.messages.get(uid)) is not None]
        for first in range(0, len(found), RENUMBERED_MAX):
            some = found[first : first + RENUMBERED_MAX]
            uids, guids = UidSet.of(one.uid for one in some), tuple(one.guid for one in some)
            key = MailboxKey.of(mailbox)
            await self._coordinator.submit(RenumberRequest(key, uids, guids, tuple(wanted[one.uid] for one in some)))

    async def know_as(self, folder: Folder, guid: bytes) -> None:
        """See `CoreMailStore`."""
        check_neighbours(self._coordinator)
        await self._coordinator.readiness.wait(tree_of(folder.user))
        value = (FOREIGN_GUID + guid.hex(), folder.mailbox_id.hex().encode())
        await self._coordinator.submit(AnnotateRequest(folder.user, NOWHERE, (value,)))

    async def unfinished_sync(self, folder: Folder) -> int | None:
        """See `CoreMailStore`. A note that another node has garbled counts as the lowest."""
        await self._coordinator.readiness.wait(tree_of(folder.user))
        query = partial(queries.values_below, user=folder.user, mailbox_id=NOWHERE, begin=_unfinished(folder))
        found = await self._store.read(query)
        return min((uid_in(value) or 0 for value in found), default=None)

    async def note_unfinished_sync(self, folder: Folder, dovecot: str, common_uid: int | None) -> None:
        """See `CoreMailStore`."""
        check_neighbours(self._coordinator)
        await self._coordinator.readiness.wait(tree_of(folder.user))
        value = None if common_uid is None else b"%d" % common_uid
        name = _unfinished(folder) + sha256(dovecot.encode(errors="surrogateescape")).hexdigest()[:32]
        await self._coordinator.submit(AnnotateRequest(folder.user, NOWHERE, ((name, value),)))

    async def note_purge(self, user: str, uidnext: int | None) -> None:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        value = (PURGED, UNDER_WAY if uidnext is None else b"%d" % uidnext)
        await self._coordinator.submit(AnnotateRequest(user, NOWHERE, (value,)))

    async def keep_uidvalidity(self, folder: Folder, uidvalidity: int | None) -> Folder:
        """See `CoreMailStore`."""
        check_neighbours(self._coordinator)
        await self._coordinator.readiness.wait(tree_of(folder.user))
        value = None if uidvalidity is None else b"%d" % uidvalidity
        await self._coordinator.submit(AnnotateRequest(folder.user, folder.mailbox_id, ((KEPT_UIDVALIDITY, value),)))
        self._folders.forget(folder.user)
        now = await self.folder(folder.user, folder.name)
        if uidvalidity not in {None, now.uidvalidity}:
            raise UnavailableError("this node does not show the folder's new UIDVALIDITY yet; try again")
        return now

    def watch_users(self) -> ChangedUsers:
        """See `CoreMailStore`."""
        changed = ChangedUsers()
        self._store.listeners.append(lambda commit: changed.note(entry.user for entry in commit.applied))
        return changed

    def has_seen(self, entry: str) -> bool:
        """See `CoreMailStore`."""
        origin, _, seq = entry.rpartition(":")
        return self._store.context.get(origin, 0) >= int(seq)

    async def users_after(self, user: str, most: int) -> Sequence[str]:
        """See `CoreMailStore`."""
        return await self._store.read(partial(queries.users_after, user=user, most=most))

    async def tree_changes(self, user: str) -> TreeChanges:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        return await self._store.read(partial(queries.tree_changes, user=user))

    async def folder_known_as(self, user: str, guid: bytes, mailbox_id: bytes) -> Folder | None:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        query = partial(queries.folder_known_as, user=user, guid=guid, mailbox_id=mailbox_id)
        return await self._store.read(query)

    async def last_change(self, folder: Folder) -> LastChange:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(tree_of(folder.user))
        query = partial(queries.last_change, user=folder.user, mailbox_id=folder.mailbox_id)
        found = await self._store.read(query)
        if found is None:
            raise FolderNotFoundError("the folder has been deleted")
        return found

    async def annotation_changes(self, user: str, folder: Folder | None) -> Sequence[AnnotationChange]:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
        home = NOWHERE if folder is None else folder.mailbox_id
        return await self._store.read(partial(queries.annotation_changes, user=user, mailbox_id=home))

    async def expunged(self, folder: Folder, scratch: Scratch | None = None) -> GuidsByUid:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(partial(queries.expunged_by_users, folder=folder, scratch=scratch))

    async def flag_changes(self, folder: Folder, uids: UidSet, above: int) -> Mapping[int, Sequence[FlagChange]]:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(
            partial(queries.flag_changes, mailbox_id=folder.mailbox_id, uids=uids, above=above)
        )

    async def list_messages(
        self, folder: Folder, uids: UidSet | None = None, scratch: Scratch | None = None
    ) -> Listing:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        if uids is None:
            async with self._store.reader() as reader:
                return await reader.read(partial(queries.listing, mailbox_id=folder.mailbox_id, scratch=scratch))
        return await self._store.read(
            partial(queries.listing_of, mailbox_id=folder.mailbox_id, uids=uids, scratch=scratch)
        )

    async def list_changed(
        self, folder: Folder, above_uid: int, above_modseq: int, scratch: Scratch | None = None
    ) -> Listing:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        above = partial(queries.listing_above, uid=above_uid, modseq=above_modseq, scratch=scratch)
        return await self._store.read(partial(above, mailbox_id=folder.mailbox_id))

    async def part_of(self, folder: Folder, uids: UidSet) -> MailboxView:
        """See `CoreMailStore`."""
        key = MailboxKey.of(folder)
        await self._coordinator.readiness.wait(key)
        return await self._store.read(partial(queries.view, key=key, uids=uids))

    async def accounts_for(self, folder: Folder, uids: CompactUids, up_to: int) -> bool:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(
            partial(queries.accounts_for, mailbox_id=folder.mailbox_id, uids=uids, up_to=up_to)
        )

    async def has_guid(self, folder: Folder, begin: bytes) -> bool:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(partial(queries.has_guid, mailbox_id=folder.mailbox_id, begin=begin))

    async def uids_of(self, folder: Folder, guids: Collection[bytes]) -> UidSet:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(partial(queries.uids_of, mailbox_id=folder.mailbox_id, guids=guids))


def check_neighbours(coordinator: Coordinator) -> None:
    """Raise UnavailableError if a neighbour does not know entries that raise numbers."""
    for link in coordinator.connections.links:
        check_raises(link)


def _unfinished(folder: Folder) -> str:
    """Return the beginning of the names of the annotations that tell of unfinished syncs of a folder."""
    return f"{UNFINISHED_SYNC}{folder.mailbox_id.hex()}/"
