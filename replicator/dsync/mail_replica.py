"""The mail of one user of this node, as dsync needs it: `replica.Replica` over the mail store.

Clients of all nodes go on using the mailboxes: what they do during a sync is found by the next one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import trio

from protocol.units import KIB, MIB
from protocol.values import UidSet
from replicator.dsync.kept_keywords import KeptKeywords
from replicator.dsync.mail_tree import name_of, tree_of
from replicator.dsync.replica import SavedAs
from replicator.dsync.rules.stored_mail import FlagChanges, StoredMail
from replicator.dsync.rules.tree import Adopt, Create, Delete, Rename, Step, Subscribe, Tree
from replicator.dsync.wire.items import Attribute, Mailbox
from replicator.errors import FolderExistsError, InvalidNameError, MailboxFullError
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

ASIDE = " (dsync)"
"""End of the name of a folder in which mail waits while its own folder is replaced."""

PRIVATE = "/private/"
SHARED = "/shared/"
"""Beginnings of the names of annotations (RFC 5464 section 3.2), without which Dovecot tells them."""

DOVECOTS_OWN = "vendor/vendor.dovecot/"

SYNCED_MAX = 100_000
"""Mailboxes whose last sync is remembered: 20 MB."""

_SYSTEM_FLAGS = frozenset(SYSTEM_FLAGS)
_UIDS_OF_ALL = UidSet.of_ranges([(1, 2**32 - 1)])


@dataclass(slots=True)
class LastSyncs:
    """When mailboxes were synced last, and their MODSEQs after that; shared by all connections.

    Changes of flags up to then are known to the peer, or its own. Kept in memory: in the first sync after a restart, a
    flag that the peer has set before, and cleared since, counts as set here, and the later change is told by MODSEQs.
    """

    _known: OrderedDict[tuple[str, bytes], tuple[int, int]] = field(default_factory=OrderedDict)

    def note(self, peer: str, mailbox_id: bytes, modseq: int, at_ms: int) -> None:
        """Note the end of a sync."""
        self._known[peer, mailbox_id] = modseq, at_ms
        self._known.move_to_end((peer, mailbox_id))
        if len(self._known) > SYNCED_MAX:
            self._known.popitem(last=False)

    def find(self, peer: str, mailbox_id: bytes) -> tuple[int, int] | None:
        """Return MODSEQ and time of the last sync, if they are known."""
        return self._known.get((peer, mailbox_id))


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

    async def tree(self) -> Tree:
        """See `Replica`."""
        changes = await self._mail.tree_changes(self._user)
        return await trio.to_thread.run_sync(tree_of, changes)

    async def carry_out(self, step: Step) -> None:
        """See `Replica`."""
        mail, user = self._mail, self._user
        match step:
            case Delete(name):
                await mail.delete_folder(user, name_of(name))
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

    async def _new(self, name: str) -> Folder:
        """Return a new folder; INBOX is there as soon as it is asked for."""
        create = self._mail.folder if name == INBOX else self._mail.create_folder
        return await create(self._user, name)

    async def _name(self, folder: Folder, guid: bytes, uidvalidity: int) -> Folder:
        """Let the peer find a folder by its GUID and UIDVALIDITY."""
        await self._mail.know_as(folder, guid)
        return await with_uidvalidity(self._mail, folder, uidvalidity)

    async def _adopt(self, step: Adopt) -> None:
        """Take the peer's GUID and UIDVALIDITY for a folder.

        If it has had mail, a new folder takes its place. The mail is in the old one meanwhile, under another name, and
        comes back above the peer's UIDs.
        """
        mail, user, name = self._mail, self._user, name_of(step.name)
        folder = await mail.folder(user, name)
        if (await mail.status(folder)).uidnext == 1:
            await self._name(folder, step.mailbox_id, step.uidvalidity)
            return
        waiting = f"{name}{ASIDE} {folder.mailbox_id.hex()[:8]}"
        await mail.rename_folder(user, name, waiting)
        folder = await self._create(name, step.mailbox_id, step.uidvalidity)
        await mail.raise_numbers(folder, step.uidnext, 1)
        await _move_all(mail, await mail.folder(user, waiting), folder)
        if not (await mail.open_mailbox(await mail.folder(user, waiting))).messages:
            await mail.delete_folder(user, waiting)

    @asynccontextmanager
    async def mailbox(self, mailbox_id: bytes, peer: str) -> AsyncIterator[MailReplicaMailbox | None]:
        """See `Replica`."""
        changes = (await self._mail.tree_changes(self._user)).folders
        own = next((one.mailbox_id for one in changes if one.guid == mailbox_id and not one.deleted), None)
        folders = await self._mail.folders(self._user)
        folder = next((folder for folder in folders if folder.mailbox_id == own), None)
        if folder is None:
            yield None
            return
        last_sync = self._last_syncs.find(peer, mailbox_id)
        box = MailReplicaMailbox(self._mail, folder, mailbox_id, last_sync, self._open_scratch)
        yield box
        box.tell_left_out()
        modseq = (await box.numbers()).highestmodseq
        self._last_syncs.note(peer, mailbox_id, modseq, self._clock_ms())


async def with_uidvalidity(mail: CoreMailStore, folder: Folder, uidvalidity: int) -> Folder:
    """Return a new folder with this UIDVALIDITY if it may have it, or else as it is."""
    if folder.uidvalidity == uidvalidity:
        return folder
    try:
        return await mail.keep_uidvalidity(folder, uidvalidity)
    except (FolderExistsError, InvalidNameError):
        return folder


async def _move_all(mail: CoreMailStore, source: Folder, destination: Folder) -> None:
    view = await mail.open_mailbox(source)
    if view.messages:
        await mail.move(view, _UIDS_OF_ALL, destination)


class MailReplicaMailbox:
    """One mailbox during a sync. `last_sync`: MODSEQ and time, if they are known."""

    def __init__(
        self,
        mail: CoreMailStore,
        folder: Folder,
        guid: bytes,
        last_sync: tuple[int, int] | None,
        open_scratch: Callable[[], BinaryIO],
    ) -> None:
        self.open_scratch = open_scratch
        self._mail = mail
        self._folder = folder
        self._guid = guid
        self._last_sync = last_sync
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
        return await trio.to_thread.run_sync(lambda: [_stored(message) for message in sorted(messages)])

    async def expunged(self, since: int) -> Mapping[int, bytes]:
        """See `ReplicaMailbox`. The node does not know by which MODSEQ, so there may be older ones among them."""
        return (await self._mail.mailbox_changes(self._folder, since)).expunged

    async def flag_changes(self, since: int) -> Mapping[int, FlagChanges]:
        """See `ReplicaMailbox`. Without a memory of the last sync, changes that it made are among them."""
        modseq, after_ms = self._last_sync or (0, 0)
        flags = (await self._mail.mailbox_changes(self._folder, max(since, modseq))).flags
        return {
            uid: FlagChanges(
                frozenset(one.flag for one in changes if one.is_set and one.changed_ms > after_ms),
                frozenset(one.flag for one in changes if not one.is_set and one.changed_ms > after_ms),
            )
            for uid, changes in flags.items()
        }

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
        since_ms = None if self._last_sync is None else self._last_sync[1]
        found = []
        for one in await self._mail.annotation_changes(self._folder):
            shared, key = one.name.startswith(SHARED), one.name.removeprefix(SHARED).removeprefix(PRIVATE)
            is_news = since_ms is not None and one.changed_ms > since_ms
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
            await self._mail.renumber(await self._view(), some)

    async def expunge(self, uids: Sequence[int]) -> None:
        """See `ReplicaMailbox`."""
        await self._mail.expunge(await self._view(), UidSet.of(uids))

    async def set_flags(self, flags: Mapping[int, frozenset[str]]) -> None:
        """See `ReplicaMailbox`."""
        view = await self._view()
        alike: dict[tuple[frozenset[str], frozenset[str]], list[int]] = {}
        for uid, wanted in flags.items():
            message = view.messages.get(uid)
            if message is not None:
                usable = await self._usable(wanted)
                change = usable - message.flags, message.flags - usable
                if any(change):
                    alike.setdefault(change, []).append(uid)
        for (added, removed), uids in alike.items():
            await self._mail.store_flags(view, UidSet.of(uids), added=added, removed=removed)

    async def take_uidvalidity(self, uidvalidity: int) -> None:
        """See `ReplicaMailbox`."""
        self._folder = await with_uidvalidity(self._mail, self._folder, uidvalidity)

    async def raise_numbers(self, *, uidnext: int, highestmodseq: int) -> None:
        """See `ReplicaMailbox`."""
        view = await self._view()
        if view.uidnext < uidnext or view.highestmodseq < highestmodseq:
            await self._mail.raise_numbers(self._folder, uidnext, highestmodseq)

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
