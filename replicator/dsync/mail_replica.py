"""The mail of one user of this node, as dsync needs it: `replica.Replica` over the mail store.

Clients of all nodes go on using the mailboxes: what they do during a sync is found by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import BinaryIO

import trio

from protocol.units import KIB, MIB
from protocol.values import UidSet
from replicator.dsync.kept_keywords import KeptKeywords
from replicator.dsync.last_syncs import LastSync, LastSyncs
from replicator.dsync.mail_tree import name_of, tree_of
from replicator.dsync.replica import SavedAs
from replicator.dsync.rules.copies import is_copy
from replicator.dsync.rules.stored_mail import FlagChanges, StoredMail
from replicator.dsync.rules.tree import Adopt, Create, Delete, Rename, Step, Subscribe, Tree
from replicator.dsync.wire.items import Attribute, Mailbox
from replicator.errors import FolderExistsError, InvalidNameError, MailboxFullError, MailError
from replicator.mail.annotations import SPECIAL_USE
from replicator.mail.flags import SYSTEM_FLAGS, keywords
from replicator.mail.mailstore import INBOX, CoreMailStore, Folder, NewMessage, ReceivedBody
from replicator.mail.view import MailboxView, Message

log = logging.getLogger(__name__)

SMALL_BYTES = 64 * KIB
"""Largest mail that is held in memory, to be saved together with others."""

BATCH_BYTES = MIB
BATCH_MAX = 64
"""Mails saved together: each time waits for disks."""

PRIVATE = "/private/"
SHARED = "/shared/"
"""Beginnings of the names of annotations (RFC 5464 section 3.2), without which Dovecot tells them."""

_FOLDER = 0
"""In place of a UID, for changes of annotations."""

DOVECOTS_OWN = "vendor/vendor.dovecot/"

_SYSTEM_FLAGS = frozenset(SYSTEM_FLAGS)


class MailReplica:
    """The mail of one user."""

    def __init__(
        self,
        mail: CoreMailStore,
        user: str,
        last_syncs: LastSyncs,
        clock_ms: Callable[[], int],
        open_scratch: Callable[[], BinaryIO],
    ) -> None:
        """`open_scratch` opens a nameless file, or raises OSError."""
        self._mail = mail
        self._open_scratch = open_scratch
        self._user = user
        self._last_syncs = last_syncs
        self._clock_ms = clock_ms
        self._folders = dict[bytes, bytes]()  # the ids of folders by their GUIDs, as the tree was told last

    async def tree(self) -> Tree:
        """See `Replica`."""
        changes = await self._mail.tree_changes(self._user)
        self._folders = {one.guid: one.mailbox_id for one in changes.folders if not one.deleted}
        await self._keep_guids({one.mailbox_id: one.guid for one in changes.folders if one.inherited})
        return await trio.to_thread.run_sync(tree_of, changes)

    async def _keep_guids(self, inherited: Mapping[bytes, bytes]) -> None:
        """Let folders have GUIDs of those that merges have united with them, whatever their names will be."""
        for folder in await self._mail.folders(self._user) if inherited else ():
            if folder.mailbox_id in inherited:
                with suppress(MailError):  # the next sync tries again
                    await self._mail.know_as(folder, inherited[folder.mailbox_id])

    async def carry_out(self, step: Step) -> None:
        """See `Replica`."""
        mail, user = self._mail, self._user
        match step:
            case Delete(_, mailbox_id, common_uid):
                await self._delete(mailbox_id, common_uid)
            case Rename(old, new):
                await mail.rename_folder(user, name_of(old), name_of(new))
            case Create(name, mailbox_id, uidvalidity):
                await self._create(name_of(name), mailbox_id, uidvalidity)
            case Adopt():
                await self._adopt(step)
            case Subscribe(name, subscribed):
                await mail.subscribe(user, name_of(name), subscribed=subscribed)

    async def _create(self, name: str, guid: bytes, uidvalidity: int) -> Folder:
        return await self._name(await self._new(name), guid, uidvalidity)

    async def _delete(self, guid: bytes, common_uid: int) -> None:
        """Delete a folder, unless it has mail that the peer has never seen: that becomes a new folder for the peer."""
        folder = await self._known_as(guid)
        if folder is None:
            return
        view = await self._mail.open_mailbox(folder)
        if all(uid <= common_uid for uid in view.messages):
            await self._mail.delete_folder(self._user, folder.name)
            return
        await self._mail.know_as(folder, sha256(guid).digest()[: len(guid)])
        await self._mail.expunge(view, UidSet.of(uid for uid in view.messages if uid <= common_uid))

    async def _known_as(self, guid: bytes) -> Folder | None:
        changes = (await self._mail.tree_changes(self._user)).folders
        own = next((one.mailbox_id for one in changes if one.guid == guid and not one.deleted), None)
        folders = await self._mail.folders(self._user)
        return next((folder for folder in folders if folder.mailbox_id == own), None)

    async def _new(self, name: str) -> Folder:
        """Return a new folder; INBOX is there as soon as it is asked for."""
        create = self._mail.folder if name == INBOX else self._mail.create_folder
        return await create(self._user, name)

    async def _name(self, folder: Folder, guid: bytes, uidvalidity: int) -> Folder:
        """Let the peer find a folder by its GUID and UIDVALIDITY."""
        await self._mail.know_as(folder, guid)
        return await with_uidvalidity(self._mail, folder, uidvalidity)

    async def _adopt(self, step: Adopt) -> None:
        """Take the peer's GUID for a folder, and its UIDVALIDITY if clients can know no mail by its own."""
        folder = await self._mail.folder(self._user, name_of(step.name))
        if (await self._mail.status(folder)).uidnext == 1:
            await self._name(folder, step.mailbox_id, step.uidvalidity)
        else:
            await self._mail.know_as(folder, step.mailbox_id)

    def common_uid(self, mailbox_id: bytes, peer: str) -> int:
        """See `Replica`."""
        last = self._last_syncs.find(peer, mailbox_id, self._folders.get(mailbox_id, b""))
        return 0 if last is None else last.common_uid

    @asynccontextmanager
    async def mailbox(self, mailbox_id: bytes, peer: str) -> AsyncIterator[MailReplicaMailbox | None]:
        """See `Replica`."""
        folder = await self._known_as(mailbox_id)
        if folder is None:
            yield None
            return
        at_ms = self._clock_ms()
        modseq = (await self._mail.open_mailbox(folder)).highestmodseq
        last_sync = self._last_syncs.find(peer, mailbox_id, folder.mailbox_id)
        this_sync = LastSync(modseq, at_ms, folder.mailbox_id)
        box = MailReplicaMailbox(self._mail, folder, mailbox_id, (last_sync, this_sync), self._open_scratch)
        yield box
        box.tell_left_out()
        if box.is_synced:
            self._last_syncs.note(peer, mailbox_id, box.this_sync)


async def with_uidvalidity(mail: CoreMailStore, folder: Folder, uidvalidity: int) -> Folder:
    """Return a new folder with this UIDVALIDITY if it may have it, or else as it is."""
    if folder.uidvalidity == uidvalidity:
        return folder
    try:
        return await mail.keep_uidvalidity(folder, uidvalidity)
    except (FolderExistsError, InvalidNameError):
        return folder


class MailReplicaMailbox:
    """One mailbox during a sync. `syncs`: the one before, if it is known, and this one."""

    def __init__(
        self,
        mail: CoreMailStore,
        folder: Folder,
        guid: bytes,
        syncs: tuple[LastSync | None, LastSync],
        open_scratch: Callable[[], BinaryIO],
    ) -> None:
        self.open_scratch = open_scratch
        self._mail = mail
        self._folder = folder
        self._guid = guid
        self._last_sync, self.this_sync = syncs
        self._own_changes: set[tuple[int, str, bool]] = set()
        self.is_synced = False
        self._read: dict[int, bytes] = {}  # GUIDs by UID, as `mails` has returned them
        self._first_read = frozenset[int]()  # the UIDs that the peer is told
        self._taken_away = set[int]()  # UIDs of mails that this sync has expunged or moved
        self._batch: list[NewMessage] = []
        self._batch_bytes = 0
        self._keywords: KeptKeywords | None = None  # once a mail is to have some

    async def numbers(self) -> Mailbox:
        """See `ReplicaMailbox`."""
        view = await self._view()
        folder = self._folder
        modseq = max(view.highestmodseq, 1)
        return Mailbox(self._guid, folder.uidvalidity, view.uidnext, len(view.messages), view.uidnext, modseq)

    async def mails(self) -> Sequence[StoredMail]:
        """See `ReplicaMailbox`."""
        messages = (await self._view()).snapshot()
        self._read = {message.uid: message.guid for message in messages}
        self._first_read = self._first_read or frozenset(self._read)
        return await trio.to_thread.run_sync(lambda: [_stored(message) for message in sorted(messages)])

    async def expunged(self, since: int) -> Mapping[int, bytes]:
        """See `ReplicaMailbox`. The node does not know by which MODSEQ: all but those that the peer has been told."""
        found = (await self._mail.mailbox_changes(self._folder, since)).expunged
        self.this_sync = replace(self.this_sync, expunged=UidSet.of(found))
        last = self._last_sync
        if last is None or not 0 < last.common_modseq <= since:
            return found
        return {uid: guid for uid, guid in found.items() if uid not in last.expunged}

    async def flag_changes(self, since: int) -> Mapping[int, FlagChanges]:
        """See `ReplicaMailbox`. Without a memory of the last sync, changes that it made are among them."""
        last = self._last_sync or LastSync(0, 0)
        flags = (await self._mail.mailbox_changes(self._folder, max(since, last.modseq))).flags
        found = dict[int, FlagChanges]()
        for uid, changes in flags.items():
            new = [one for one in changes if one.changed_ms >= last.at_ms]
            new = [one for one in new if (uid, one.flag, one.is_set) not in last.own_changes]
            added = frozenset(one.flag for one in new if one.is_set)
            found[uid] = FlagChanges(added, frozenset(one.flag for one in new if not one.is_set))
        return found

    async def can_tell_since(self, common_uid: int, common_modseq: int) -> bool:
        """See `ReplicaMailbox`."""
        last = self._last_sync
        if last is None or (last.common_uid, last.common_modseq) != (common_uid, common_modseq):
            return False
        messages = (await self._view()).snapshot()
        expunged = (await self._mail.mailbox_changes(self._folder, self.this_sync.modseq)).expunged

        def has_all() -> bool:
            here = {message.uid for message in messages}
            return all(uid in here or uid in expunged for uid in last.uids)

        return await trio.to_thread.run_sync(lambda: has_all() and not any(is_copy(one.guid) for one in messages))

    async def synced(self, common_uid: int, common_modseq: int) -> None:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        messages = (await self._view()).snapshot()
        told = self._first_read - self._taken_away

        def uids() -> UidSet:
            return UidSet.of(uid for uid in {*told, *(message.uid for message in messages)} if uid <= common_uid)

        self.this_sync = replace(
            self.this_sync,
            common_uid=common_uid,
            common_modseq=common_modseq,
            own_changes=frozenset(self._own_changes),
            uids=await trio.to_thread.run_sync(uids),
        )
        self.is_synced = True

    def _own(self, uid: int, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        self._own_changes |= {(uid, flag, True) for flag in added} | {(uid, flag, False) for flag in removed}

    async def text(self, mail: StoredMail) -> AsyncIterator[bytes] | None:
        """See `ReplicaMailbox`."""
        message = (await self._view()).messages.get(mail.uid)
        if message is None or message.guid != mail.guid:
            return None
        body = await self._mail.read_body(message)
        await body.check(0, body.skeleton.size_bytes)
        return body.read(0, body.skeleton.size_bytes)

    async def check_room(self, mails: int, size_bytes: int) -> None:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        await self._mail.check_quota(self._folder.user, mails, size_bytes)

    async def attributes(self) -> Sequence[Attribute]:
        """See `ReplicaMailbox`. Annotations have no MODSEQ here; those that are news have the mailbox's."""
        modseq = (await self.numbers()).highestmodseq
        last = self._last_sync
        found = []
        for one in await self._mail.annotation_changes(self._folder):
            shared, key = one.name.startswith(SHARED), one.name.removeprefix(SHARED).removeprefix(PRIVATE)
            is_own = last is not None and (_FOLDER, one.name, one.value is not None) in last.own_changes
            is_news = last is not None and one.changed_ms >= last.at_ms and not is_own
            value = None if one.value is None else one.value.decode(errors="surrogateescape")
            if one.name != SPECIAL_USE:
                changed_s = one.changed_ms // 1000 if is_news else 0
                found.append(Attribute(shared, key, value, changed_s=changed_s, modseq=modseq if is_news else 0))
        return found

    async def set_attribute(self, attribute: Attribute) -> None:
        """See `ReplicaMailbox`. Uses of folders and what is Dovecot's own stays there."""
        name = (SHARED if attribute.shared else PRIVATE) + attribute.key
        if name == SPECIAL_USE or attribute.key.startswith(DOVECOTS_OWN):
            return
        value = None if attribute.value is None else attribute.value.encode(errors="surrogateescape")
        self._own_changes.add((_FOLDER, name, value is not None))
        try:
            await self._mail.annotate(self._folder.user, self._folder, {name: value})
        except (InvalidNameError, MailboxFullError) as error:
            log.info("an annotation is left out: %s", error)

    async def save(self, mail: SavedAs, text: AsyncIterator[bytes]) -> None:
        """See `ReplicaMailbox`. Small mails are saved together, at the latest by the next call of another method."""
        begin = bytearray()
        async for piece in text:
            begin += piece
            if len(begin) > SMALL_BYTES:
                await self._save_batch()
                await self._save_large(mail, bytes(begin), text)
                return
        self._batch.append(await self._new(mail, bytes(begin)))
        self._batch_bytes += len(begin)
        if len(self._batch) >= BATCH_MAX or self._batch_bytes >= BATCH_BYTES:
            await self._save_batch()

    async def _save_large(self, mail: SavedAs, begin: bytes, rest: AsyncIterator[bytes]) -> None:
        async with self._mail.receive() as sink:
            await sink.write(begin)
            async for piece in rest:
                await sink.write(piece)
            await self._mail.save(self._folder, await self._new(mail, await sink.finish()))

    async def _new(self, mail: SavedAs, body: bytes | ReceivedBody) -> NewMessage:
        flags = await self._usable(mail.flags)
        self._own(mail.uid, flags)
        return NewMessage(body, flags, mail.received_s * 1000, mail.uid, mail.guid)

    async def _usable(self, flags: frozenset[str]) -> frozenset[str]:
        """Return those of the flags that a mail here can have."""
        if self._keywords is None:
            if flags <= _SYSTEM_FLAGS:
                return flags
            self._keywords = KeptKeywords(keywords(await self._mail.open_mailbox(self._folder)))
        return self._keywords.of(flags)

    def tell_left_out(self) -> None:
        """Log which keywords of the peer's were left out."""
        if self._keywords is not None:
            self._keywords.tell(self._folder)

    async def _save_batch(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            await self._mail.save_all(self._folder, batch)

    async def move(self, uids: Mapping[int, int]) -> None:
        """See `ReplicaMailbox`."""
        for some in _ascending(uids):
            view = await self._view()
            same = {old: new for old, new in some.items() if self._is_same(view, old)}
            for old, new in same.items():
                self._own(new, view.messages[old].flags)
            await self._mail.renumber(view, same)
            self._taken_away.update(same)

    async def expunge(self, uids: Sequence[int]) -> None:
        """See `ReplicaMailbox`."""
        view = await self._view()
        same = [uid for uid in uids if self._is_same(view, uid)]
        await self._mail.expunge(view, UidSet.of(same))
        self._taken_away.update(same)

    async def change_flags(self, changes: Mapping[int, FlagChanges]) -> None:
        """See `ReplicaMailbox`."""
        view = await self._view()
        alike: dict[FlagChanges, list[int]] = {}
        for uid, change in changes.items():
            usable = FlagChanges(await self._usable(change.added), change.removed)
            if self._is_same(view, uid) and (usable.added or usable.removed):
                alike.setdefault(usable, []).append(uid)
        for one, uids in alike.items():
            for uid in uids:
                self._own(uid, one.added, one.removed)
            await self._mail.store_flags(view, UidSet.of(uids), added=one.added, removed=one.removed)

    async def take_uidvalidity(self, uidvalidity: int) -> None:
        """See `ReplicaMailbox`."""
        self._folder = await with_uidvalidity(self._mail, self._folder, uidvalidity)

    async def raise_numbers(self, *, uidnext: int, highestmodseq: int) -> None:
        """See `ReplicaMailbox`."""
        view = await self._view()
        if view.uidnext < uidnext or view.highestmodseq < highestmodseq:
            await self._mail.raise_numbers(self._folder, uidnext, highestmodseq)

    def _is_same(self, view: MailboxView, uid: int) -> bool:
        """Return True if the UID names the mail that it has named before: a merge may give it to another one."""
        message = view.messages.get(uid)
        return message is not None and message.guid == self._read.get(uid)

    async def _view(self) -> MailboxView:
        """Return the mailbox as it is once all mails are saved."""
        await self._save_batch()
        return await self._mail.open_mailbox(self._folder)


def _ascending(uids: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Yield parts of it in which the keys ascend, too: the store gives new UIDs in their order."""
    some = dict[int, int]()
    for old, new in uids.items():
        if some and old < next(reversed(some)):
            yield some
            some = {}
        some[old] = new
    if some:
        yield some


def _stored(message: Message) -> StoredMail:
    received_ms, saved_ms = message.received_ms, message.saved_ms
    saved_s = (received_ms if saved_ms is None else saved_ms) // 1000
    return StoredMail(message.uid, message.guid, message.modseq, message.flags, received_ms // 1000, saved_s)
