"""The mail of one user of this node, as dsync needs it: `replica.Replica` over the mail store.

Clients of all nodes go on using the mailboxes: what they do during a sync is found by the next one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import trio

from replicator.dsync.node_mail.held_up import HeldUp
from replicator.dsync.node_mail.known_uids import knows_all
from replicator.dsync.node_mail.last_syncs import LastSync, LastSyncFiles, LastSyncs
from replicator.dsync.node_mail.mail_replica_mailbox import MailReplicaMailbox, with_uidvalidity
from replicator.dsync.node_mail.mail_tree import name_of as folder_name
from replicator.dsync.node_mail.mail_tree import tree_of
from replicator.dsync.node_mail.read_mails import in_parts
from replicator.dsync.rules.given_names import GivenName
from replicator.dsync.rules.tree import Adopt, Create, Delete, Rename, Step, Subscribe, Tree
from replicator.dsync.wire.items import MailboxState
from replicator.errors import ContentUnavailableError, FolderExistsError, FolderNotFoundError, MailError
from replicator.mail.last_changes import FolderChange, TreeChanges
from replicator.mail.listing import Listing
from replicator.mail.mailstore import INBOX, CoreMailStore, Folder
from replicator.mail.scratch import Scratch

HOLDS_UP = "Mail after it waits: `replicator scrub` fetches bodies from other nodes; expunge a mail that is lost"
"""Advice about a mail that cannot be read."""


@dataclass(frozen=True, slots=True)
class MailReplicas:
    """The mail of all users of a node. `open_scratch` opens a nameless file, or raises OSError."""

    mail: CoreMailStore
    memory: LastSyncFiles
    clock_ms: Callable[[], int]
    open_scratch: Callable[[], BinaryIO]
    held_up: HeldUp = field(default_factory=HeldUp)

    @asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[MailReplica]:
        """Open the mail of a user for one sync, with what is remembered of earlier ones."""
        last_syncs = await self.memory.load(user)
        try:
            yield MailReplica(self, user, last_syncs)
        finally:
            with trio.CancelScope(shield=True):  # no deadline: a thread that writes cannot be given up
                await self.memory.save(user, last_syncs)


class MailReplica:
    """The mail of one user."""

    def __init__(
        self,
        node: MailReplicas,
        user: str,
        last_syncs: LastSyncs,
    ) -> None:
        """`node` has the mail of all users."""
        self._mail = node.mail
        self._open_scratch = node.open_scratch
        self._held_up = node.held_up
        self.user = user
        self._last_syncs = last_syncs
        self._clock_ms = node.clock_ms
        self._folders = dict[bytes, bytes]()  # the ids of folders by their GUIDs, as told last, or given since then
        self._deleted = dict[bytes, FolderChange]()  # those that are none any more, by their GUIDs

    async def tree(self) -> Tree:
        """See `Replica`."""
        changes = await self._changes()
        if changes.purge is not None and changes.purge.uidnext is None:  # it broke off, and the user is one again
            with suppress(MailError):  # the next sync tries again
                await self._mail.note_purge(self.user, 1)
        self._last_syncs.keep_only({one.guid for one in changes.folders})
        self._folders = {one.guid: one.mailbox_id for one in changes.folders if not one.deleted}
        self._deleted = {one.guid: one for one in changes.folders if one.deleted}
        await self._keep_guids({one.mailbox_id: one.guid for one in changes.folders if one.inherited})
        return await trio.to_thread.run_sync(tree_of, changes)

    async def _changes(self) -> TreeChanges:
        """Return the folders, and forget syncs of a former user: mail of that time counts as never seen."""
        changes = await self._mail.tree_changes(self.user)
        if changes.purge is not None:
            inbox = next((one.guid for one in changes.folders if one.name == INBOX), None)
            self._last_syncs.forget_former(changes.purge, inbox)
        return changes

    async def _keep_guids(self, inherited: Mapping[bytes, bytes]) -> None:
        """Let folders have GUIDs of those that merges have united with them, whatever their names will be."""
        for folder in await self._mail.folders(self.user) if inherited else ():
            if folder.mailbox_id in inherited:
                with suppress(MailError):  # the next sync tries again
                    await self._mail.know_as(folder, inherited[folder.mailbox_id])

    async def states(self, peer: str) -> Sequence[MailboxState]:
        """See `Replica`."""
        folders = {one.mailbox_id: one for one in await self._mail.folders(self.user)}
        found = list[MailboxState]()
        for one in (await self._changes()).folders:
            last = self._last_sync(peer, one.guid, one.mailbox_id)
            if (
                last is not None
                and one.mailbox_id in folders
                and last.common_uid + last.common_modseq > 0
                and not last.copies
                and last.uidvalidity == one.uidvalidity
                and last.common_uid < one.uidnext
                and last.common_modseq <= one.highestmodseq
                and (last.head == one.head or await knows_all(self._mail, folders[one.mailbox_id], last))
            ):
                found.append(
                    MailboxState(one.guid, last.uidvalidity, last.common_uid, last.common_modseq, last.messages)
                )
        return found

    async def unchanged(self, peer: str) -> AbstractSet[bytes]:
        """See `Replica`."""
        folders = (await self._changes()).folders
        found = [(one, self._last_sync(peer, one.guid, one.mailbox_id)) for one in folders if not one.deleted]
        return {one.guid for one, last in found if last and (last.head, last.annotated) == (one.head, one.annotated)}

    def forget(self, peer: str, mailbox_id: bytes | None = None) -> None:
        """See `Replica`."""
        self._last_syncs.forget(peer, mailbox_id)

    def full_sync_age_s(self, dovecot: str) -> float:
        """See `Replica`. A time that is to come, as after the clock was set back, tells nothing."""
        at_ms, now_ms = self._last_syncs.full.get(dovecot), self._clock_ms()
        return math.inf if at_ms is None or at_ms > now_ms else (now_ms - at_ms) / 1000

    def note_full_sync(self, dovecot: str) -> None:
        """See `Replica`."""
        self._last_syncs.note_full(dovecot, self._clock_ms())

    async def carry_out(self, step: Step) -> None:
        """See `Replica`."""
        mail, user = self._mail, self.user
        match step:
            case Delete(_, mailbox_id, common_uid):
                await self._delete(mailbox_id, common_uid)
            case Rename(old, new, mailbox_id):
                folder = await mail.folder(user, folder_name(old))
                if folder.mailbox_id != self._folders.get(mailbox_id):
                    raise FolderNotFoundError("another folder has got the name meanwhile")
                await mail.rename_folder(user, folder.name, folder_name(new))
            case Create(name, mailbox_id, uidvalidity):
                await self._create(folder_name(name), mailbox_id, uidvalidity)
            case Adopt():
                await self._adopt(step)
            case Subscribe(name, subscribed):
                await mail.subscribe(user, folder_name(name), subscribed=subscribed)

    async def _create(self, name: str, guid: bytes, uidvalidity: int) -> Folder:
        return await self._name(await self._new(name), guid, uidvalidity)

    async def _delete(self, guid: bytes, common_uid: int) -> None:
        """Delete a folder. Mail that the peer has never seen goes to a new one, which gets its name.

        Clients of the peer may know other mail by UIDs of the deleted one, under its UIDVALIDITY.
        """
        folder = await self._known_as(guid)
        if folder is None or folder.name == INBOX:  # which it may have become meanwhile
            return
        with closing(Scratch(self._open_scratch)) as scratch:
            mails = await self._mail.list_messages(folder, scratch=scratch)  # what comes later stays
            seen, unseen = await trio.to_thread.run_sync(_parted, mails, common_uid)
            if not unseen:
                await self._mail.delete_seen(folder, seen)
                return
            new = await self._beside(folder.name, guid)
            for some in in_parts(unseen):
                await self._mail.move(await self._mail.part_of(folder, some), some, new)
            await self._mail.delete_seen(folder, seen)
            await self._mail.rename_folder(self.user, new.name, folder.name)

    async def _beside(self, name: str, guid: bytes) -> Folder:
        """Return a folder with the beginning of this GUID behind its name, new or left by a sync that broke off."""
        name = f"{name}-{guid.hex()[:8]}"
        with suppress(FolderExistsError):
            return await self._mail.create_folder(self.user, name)
        return await self._mail.folder(self.user, name)

    async def _known_as(self, guid: bytes) -> Folder | None:
        """Return the folder that Dovecots know by this GUID, mostly the one that did as the tree was told."""
        told = self._folders.get(guid)
        found = None if told is None else await self._mail.folder_known_as(self.user, guid, told)
        if found is not None:
            return found
        changes = (await self._changes()).folders
        own = next((one.mailbox_id for one in changes if one.guid == guid and not one.deleted), None)
        folders = await self._mail.folders(self.user)
        return next((folder for folder in folders if folder.mailbox_id == own), None)

    async def _new(self, name: str) -> Folder:
        """Return a new folder; INBOX is there as soon as it is asked for."""
        create = self._mail.folder if name == INBOX else self._mail.create_folder
        return await create(self.user, name)

    async def _name(self, folder: Folder, guid: bytes, uidvalidity: int) -> Folder:
        """Let the peer find a folder by its GUID and UIDVALIDITY."""
        await self._know_as(folder, guid)
        return await with_uidvalidity(self._mail, folder, uidvalidity)

    async def _know_as(self, folder: Folder, guid: bytes) -> None:
        await self._mail.know_as(folder, guid)
        self._folders[guid] = folder.mailbox_id

    async def _adopt(self, step: Adopt) -> None:
        """Take the peer's GUID for a folder, and its UIDVALIDITY if clients can know no mail by its own."""
        folder = await self._mail.folder(self.user, folder_name(step.name))
        if (await self._mail.status(folder)).uidnext == 1:
            await self._name(folder, step.mailbox_id, step.uidvalidity)
        else:
            await self._know_as(folder, step.mailbox_id)

    @property
    def given_names(self) -> Mapping[bytes, GivenName]:
        """See `Replica`."""
        return self._last_syncs.given_names

    def note_given_names(self, names: Mapping[bytes, GivenName]) -> None:
        """See `Replica`."""
        self._last_syncs.note_given_names(names)

    def common_uid(self, mailbox_id: bytes, peer: str) -> int:
        """See `Replica`."""
        last = self._last_sync(peer, mailbox_id, self._folders.get(mailbox_id, b""))
        return 0 if last is None else last.common_uid

    def seen_uid(self, mailbox_id: bytes, uidvalidity: int, peer: str) -> int:
        """See `Replica`. Where no sync with this peer is known, all UIDs count that the folder here has had."""
        deleted = self._deleted.get(mailbox_id)
        if deleted is None:
            return 0
        last = self._last_sync(peer, mailbox_id, deleted.mailbox_id)
        if last is None or not last.common_uid:
            return deleted.uidnext - 1
        return last.common_uid if last.uidvalidity == uidvalidity else 0

    def _last_sync(self, peer: str, mailbox_id: bytes, folder: bytes) -> LastSync | None:
        """Return the last sync, if the node's database still has what was there then: an older one may be restored."""
        last = self._last_syncs.find(peer, mailbox_id, folder)
        return last if last is None or not last.head or self._mail.has_seen(last.head) else None

    def held_up(self, mailbox_id: bytes) -> str | None:
        """See `Replica`."""
        return self._held_up.why(self.user, mailbox_id)

    @asynccontextmanager
    async def mailbox(self, mailbox_id: bytes, peer: str) -> AsyncIterator[MailReplicaMailbox | None]:
        """See `Replica`. A ContentUnavailableError meanwhile gets the folder's name, and what to do."""
        folder = await self._known_as(mailbox_id)
        if folder is None:
            yield None
            return
        at_ms = self._clock_ms()
        change = await self._mail.last_change(folder)  # before mails: what comes in between is found by the next sync
        began = await self._mail.status(folder)
        last_sync = self._last_sync(peer, mailbox_id, folder.mailbox_id)
        then = folder.uidvalidity, began.highestmodseq, at_ms, change.head, change.annotated
        syncs = last_sync, LastSync(folder.mailbox_id, *then)
        with closing(Scratch(self._open_scratch)) as scratch:
            box = MailReplicaMailbox(self._mail, began, (mailbox_id, peer), syncs, scratch)
            try:
                yield box
            except ContentUnavailableError as error:
                why = f"folder {folder.name!r}, {error}. {HOLDS_UP}"
                self._held_up.note(self.user, mailbox_id, why)
                raise ContentUnavailableError(why) from error
        box.tell_left_out()
        if box.remembered is not None:
            self._last_syncs.note(peer, mailbox_id, box.remembered)


def _parted(mails: Listing, common_uid: int) -> tuple[Listing, Sequence[int]]:
    """Return the mails up to a UID, and the UIDs of the others."""
    first_unseen = mails.first_above(common_uid)
    return mails[:first_unseen], array("I", mails[first_unseen:].uids())
