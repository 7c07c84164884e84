"""The mail of one user of this node, as dsync needs it: `replica.Replica` over the mail store.

Clients of all nodes go on using the mailboxes: what they do during a sync is found by the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from protocol.units import KIB, MIB
from protocol.values import UidSet
from replicator.dsync.replica import FlagChanges, SavedAs, StoredMail
from replicator.dsync.rules.tree import Adopt, Create, Delete, Name, Rename, Step, Subscribe, Tree, name_hash
from replicator.dsync.wire.items import Deletions, Mailbox, TreeNode
from replicator.errors import FolderExistsError
from replicator.mail.flags import SYSTEM_FLAGS, is_keyword
from replicator.mail.last_changes import TreeChanges
from replicator.mail.mailstore import SEPARATOR, CoreMailStore, Folder, NewMessage, ReceivedBody
from replicator.mail.view import MailboxView, Message

SMALL_BYTES = 64 * KIB
"""Largest mail that is held in memory, to be saved together with others."""

BATCH_BYTES = MIB
BATCH_MAX = 64
"""Mails saved together: each time waits for disks."""

ASIDE = " (dsync)"
"""End of the name of a folder in which mail waits while its own folder is replaced, or gives it other UIDs."""

ESCAPED_SEPARATOR = "%2f"
"""A separator within a level of a name, which Dovecot allows where its own separator is another one."""

SYNCED_MAX = 100_000
"""Mailboxes whose last sync is remembered: 20 MB."""

_UIDS_OF_ALL = UidSet.of_ranges([(1, 2**32 - 1)])


@dataclass(slots=True)
class LastSyncs:
    """When mailboxes were synced last, and their MODSEQs after that; shared by all connections.

    Changes of flags up to then are known to the peer, or its own. Kept in memory: after a restart, the next sync of a
    mailbox takes changes of flags from MODSEQs alone.
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


def levels_of(name: str) -> Name:
    """Return the levels of a folder's name."""
    return tuple(level.replace(ESCAPED_SEPARATOR, SEPARATOR) for level in name.split(SEPARATOR))


def name_of(levels: Name) -> str:
    """Return the folder's name that has these levels."""
    return SEPARATOR.join(level.replace(SEPARATOR, ESCAPED_SEPARATOR) for level in levels)


class MailReplica:
    """The mail of one user."""

    def __init__(self, mail: CoreMailStore, user: str, last_syncs: LastSyncs, clock_ms: Callable[[], int]) -> None:
        self._mail = mail
        self._user = user
        self._last_syncs = last_syncs
        self._clock_ms = clock_ms

    async def tree(self) -> Tree:
        """See `Replica`."""
        return tree_of(await self._mail.tree_changes(self._user))

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

    async def _create(self, name: str, mailbox_id: bytes, uidvalidity: int) -> Folder:
        folder = await self._mail.create_folder_as(self._user, name, mailbox_id)
        return await with_uidvalidity(self._mail, folder, uidvalidity)

    async def _adopt(self, step: Adopt) -> None:
        """Replace a folder by one with the other id. Its mail waits aside, and comes back above the peer's UIDs."""
        mail, name = self._mail, name_of(step.name)
        folder = await mail.folder(self._user, name)
        async with aside(mail, folder) as waiting:
            await _move_all(mail, folder, waiting)
            adopted = await self._create(name, step.mailbox_id, step.uidvalidity)
            view = await mail.open_mailbox(waiting)
            if view.messages:
                await mail.raise_numbers(adopted, step.uidnext, 1)
            await _move_all(mail, waiting, adopted)

    @asynccontextmanager
    async def mailbox(self, mailbox_id: bytes, peer: str) -> AsyncIterator[MailReplicaMailbox | None]:
        """See `Replica`."""
        folders = await self._mail.folders(self._user)
        folder = next((folder for folder in folders if folder.mailbox_id == mailbox_id), None)
        if folder is None:
            yield None
            return
        box = MailReplicaMailbox(self._mail, folder, self._last_syncs.find(peer, mailbox_id))
        yield box
        modseq = (await box.numbers()).highestmodseq
        self._last_syncs.note(peer, mailbox_id, modseq, self._clock_ms())


def tree_of(changes: TreeChanges) -> Tree:
    """Return a user's folders and subscriptions as dsync tells them."""
    living = {one.name: one for one in changes.folders if not one.deleted}
    subscriptions = {one.name: one for one in changes.subscriptions}
    nodes = dict[Name, TreeNode]()
    for name in living.keys() | {name for name, one in subscriptions.items() if one.subscribed}:
        folder, subscription = living.get(name), subscriptions.get(name)
        levels = levels_of(name)
        nodes[levels] = TreeNode(
            levels,
            folder is not None,
            None if folder is None else folder.mailbox_id,
            0 if folder is None else folder.uidvalidity,
            1 if folder is None else folder.uidnext,
            0 if folder is None else folder.changed_ms // 1000,
            subscription is not None and subscription.subscribed,
            0 if subscription is None else subscription.changed_ms // 1000,
        )
    for name in living:
        for levels in _above(levels_of(name)):
            nodes.setdefault(levels, TreeNode(levels))
    deleted = [one for one in changes.folders if one.deleted]
    return Tree(
        nodes,
        Deletions(
            SEPARATOR,
            {one.mailbox_id: one.changed_ms // 1000 for one in deleted},
            {_hash_of(one.name): one.changed_ms // 1000 for one in deleted if levels_of(one.name) not in nodes},
            {_hash_of(one.name): one.changed_ms // 1000 for one in subscriptions.values() if not one.subscribed},
        ),
    )


def _above(levels: Name) -> Iterator[Name]:
    return (levels[:length] for length in range(1, len(levels)))


def _hash_of(name: str) -> bytes:
    return name_hash(levels_of(name), SEPARATOR)


async def with_uidvalidity(mail: CoreMailStore, folder: Folder, uidvalidity: int) -> Folder:
    """Return a new folder with this UIDVALIDITY if it may have it, or else as it is."""
    if folder.uidvalidity == uidvalidity:
        return folder
    try:
        return await mail.keep_uidvalidity(folder, uidvalidity)
    except FolderExistsError:
        return folder


@asynccontextmanager
async def aside(mail: CoreMailStore, folder: Folder) -> AsyncIterator[Folder]:
    """Create a folder in which mail can wait, and delete it afterwards. If the block fails, it stays with its mail."""
    name = folder.name + ASIDE
    try:
        waiting = await mail.create_folder(folder.user, name)
    except FolderExistsError:  # an earlier sync did not come to its end
        waiting = await mail.folder(folder.user, name)
    yield waiting
    if not (await mail.open_mailbox(waiting)).messages:
        await mail.delete_folder(folder.user, name)


async def _move_all(mail: CoreMailStore, source: Folder, destination: Folder) -> None:
    view = await mail.open_mailbox(source)
    if view.messages:
        await mail.move(view, _UIDS_OF_ALL, destination)


class MailReplicaMailbox:
    """One mailbox during a sync. `last_sync`: MODSEQ and time, if they are known."""

    def __init__(self, mail: CoreMailStore, folder: Folder, last_sync: tuple[int, int] | None) -> None:
        self._mail = mail
        self._folder = folder
        self._last_sync = last_sync
        self._batch: list[NewMessage] = []
        self._batch_bytes = 0

    async def numbers(self) -> Mailbox:
        """See `ReplicaMailbox`."""
        view = await self._view()
        folder = self._folder
        modseq = max(view.highestmodseq, 1)
        return Mailbox(folder.mailbox_id, folder.uidvalidity, view.uidnext, len(view.messages), view.uidnext, modseq)

    async def mails(self) -> Sequence[StoredMail]:
        """See `ReplicaMailbox`."""
        messages = (await self._view()).snapshot()
        return await trio.to_thread.run_sync(lambda: [_stored(message) for message in sorted(messages)])

    async def expunged(self, since: int) -> Mapping[int, bytes]:
        """See `ReplicaMailbox`. The node does not know by which MODSEQ, so there may be older ones among them."""
        return (await self._mail.mailbox_changes(self._folder, since)).expunged

    async def flag_changes(self, since: int) -> Mapping[int, FlagChanges]:
        """See `ReplicaMailbox`. Without a memory of the last sync, only a comparison of all mails gets them."""
        if self._last_sync is None and since:
            return {}
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
        return NewMessage(body, usable(mail.flags), mail.received_s * 1000, mail.uid, mail.guid)

    async def _save_batch(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            await self._mail.save_all(self._folder, batch)

    async def move(self, uids: Mapping[int, int]) -> None:
        """See `ReplicaMailbox`."""
        await self._mail.renumber(await self._view(), uids)

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
                change = usable(wanted) - message.flags, message.flags - wanted
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


def _stored(message: Message) -> StoredMail:
    received_ms, saved_ms = message.received_ms, message.saved_ms
    saved_s = (received_ms if saved_ms is None else saved_ms) // 1000
    return StoredMail(message.uid, message.guid, message.modseq, message.flags, received_ms // 1000, saved_s)


def usable(flags: frozenset[str]) -> frozenset[str]:
    """Return those of the flags that a mail here can have."""
    return frozenset(flag for flag in flags if flag in SYSTEM_FLAGS or is_keyword(flag))
