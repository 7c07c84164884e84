"""The mail store that the doors use: `replicator.mail.mailstore.MailStore` over the cluster.

Reads from this node; turns each change into a request and hands it to the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from hashlib import blake2b
from itertools import groupby

import trio

from protocol.commands import Saved
from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import (
    ContentUnavailableError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidNameError,
    MailError,
    UnavailableError,
)
from replicator.mail.annotations import check_annotation_name
from replicator.mail.changed_users import ChangedUsers
from replicator.mail.folder_watch import FolderSubscription
from replicator.mail.last_changes import AnnotationChange, MailboxChanges, TreeChanges
from replicator.mail.lookup import SeenMessages, seen
from replicator.mail.mailstore import (
    INBOX,
    BodyReader,
    BodySink,
    CopiedMessages,
    Folder,
    FolderStatus,
    NewMessage,
    Quota,
    SavedMessage,
    SearchTextSlice,
    StoreResult,
    check_folder_name,
)
from replicator.mail.view import MailboxView, Message
from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.folder_cache import FolderCache
from replicator.replication.writes.quotas import Quotas
from replicator.replication.writes.requests import (
    SAVE_ALL_BYTES,
    SAVE_ALL_MAX,
    AnnotateRequest,
    CreateRequest,
    DeleteRequest,
    RaiseRequest,
    RenameRequest,
    RenumberRequest,
    SubscribeRequest,
    check_raises,
    save_request,
)
from replicator.replication.writes.seen_changes import SeenChanges
from replicator.replication.writes.uid_retry import Added, UidRetry
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Usage
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows import recent
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencer import NewMail
from replicator.store.store import Store
from resync.entry import ID_BYTES, NOWHERE, tree_id
from resync.names_elsewhere import FOREIGN_GUID, KEPT_UIDVALIDITY, OWN

REFUSED_MAX = 10_000  # users
RENUMBERED_MAX = 500  # messages that get other UIDs by one entry


class ClusterMailStore:
    """The mail store of the cluster, see `MailStore`. Belongs to the event loop."""

    changes_type = SeenChanges

    def __init__(
        self, store: Store, coordinator: Coordinator, environment: Environment, quotas: Quotas | None = None
    ) -> None:
        """Create the mail store; without `quotas`, users may store anything."""
        self._quotas = quotas or Quotas(store.usage)
        self._store = store
        self._coordinator = coordinator
        self._environment = environment
        self._bodies = coordinator.bodies
        self._uid_retry = UidRetry(
            store, coordinator.submit, timeout_s=timing.REQUEST_TIMEOUT_S + timing.ROUTER_SHOW_TIMEOUT_S
        )
        self.changes = self.changes_type(coordinator.submit, self._uid_retry, self._quotas, environment.new_guid)
        self._refused: set[str] = set()  # new users whose first mail was refused: each attempt would claim a mailbox
        self._folders = FolderCache(store.origin)
        store.listeners.append(self._folders.note)

    async def wait_ready(self) -> None:
        """See `MailStore`."""
        await self._coordinator.admission.wait()

    # ---- folders

    async def folders(self, user: str) -> Sequence[Folder]:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        return await self._store.read(partial(queries.ordered_folders, user=user))

    async def folder(self, user: str, name: str) -> Folder:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(_tree(user))
        found = await self._find_folder(user, name)
        if found is None and name == INBOX:
            return await self._create(user, INBOX)
        if found is None:
            raise FolderNotFoundError(f"there is no folder {name!r}")
        return found

    async def _find_folder(self, user: str, name: str) -> Folder | None:
        """Return the folder as this node shows it now."""
        known = self._folders.get(user, name)
        if known is not None:
            return known
        before = self._folders.changes
        record = await self._store.read(lambda reader: queries.folder(reader, user, name))
        if record is None:
            return None
        folder = record.folder_of(user)
        self._folders.remember(folder, before)
        return folder

    async def subscriptions(self, user: str) -> Sequence[str]:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(_tree(user))
        return await self._store.read(lambda reader: sorted(queries.subscriptions(reader, user)))

    async def annotations(self, user: str, folder: Folder | None) -> Mapping[str, bytes]:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(_tree(user))
        home = NOWHERE if folder is None else folder.mailbox_id
        return await self._store.read(partial(queries.annotations_of, user=user, mailbox_id=home))

    async def annotated(self, user: str, name: str) -> Mapping[bytes, bytes]:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(_tree(user))
        return await self._store.read(partial(queries.annotated, user=user, name=name))

    async def annotate(self, user: str, folder: Folder | None, values: Mapping[str, bytes | None]) -> None:
        """See `MailStore`."""
        for name in values:
            check_annotation_name(name)
            if name.startswith(OWN):
                raise InvalidNameError(f"annotations below {OWN} belong to the nodes; use another name")
        await self._coordinator.readiness.wait(_tree(user))
        home = NOWHERE if folder is None else folder.mailbox_id
        await self._coordinator.submit(AnnotateRequest(user, home, tuple(values.items())))

    async def create_folder(self, user: str, name: str, use: str | None = None) -> Folder:
        """See `MailStore`."""
        check_folder_name(name)
        if name == INBOX:
            raise FolderExistsError("INBOX exists for every user")
        await self._coordinator.readiness.wait(_tree(user))
        return await self._create(user, name, use)

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        """See `MailStore`."""
        check_folder_name(new)
        if new == INBOX:
            raise FolderExistsError("INBOX exists for every user")
        folder = await self.folder(user, old)
        new_id = self._environment.new_guid
        await self._coordinator.submit(RenameRequest(user, folder.mailbox_id, new, new_id))

    async def delete_folder(self, user: str, name: str) -> None:
        """See `MailStore`. Removes the mail that this node has seen; a folder that holds more stays."""
        if name == INBOX:
            raise InvalidNameError("INBOX cannot be deleted")
        folder = await self.folder(user, name)
        view = await self.open_mailbox(folder)
        shown = await self._seen(view, UidSet.of_ranges([(1, UID_MAX)]))
        # In this order, so that after a failure in between the folder stays visible with its mail, not without.
        await self._coordinator.submit(DeleteRequest(user, folder.mailbox_id))
        await self.changes.expunge(shown)

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """See `MailStore`."""
        check_folder_name(name)
        await self._coordinator.readiness.wait(_tree(user))
        await self._coordinator.submit(SubscribeRequest(user, name, subscribed))

    async def catch_up(self, user: str, name: str | None = None) -> bool:
        """See `MailStore`."""
        tree = _tree(user)
        await self._coordinator.readiness.wait(tree)
        catch_up, before = self._coordinator.read_your_writes.catch_up, await self._mailbox(user, name)
        is_here = await catch_up(tree, *before)
        if (now := await self._mailbox(user, name)) != before:
            is_here = await catch_up(*now) and is_here
        return is_here

    async def _mailbox(self, user: str, name: str | None) -> list[MailboxKey]:
        """Return the mailbox of the folder of this name, if there is one."""
        found = None if name is None else await self._find_folder(user, name)
        return [] if found is None else [MailboxKey.of(found)]

    async def watch_folders(self, user: str) -> FolderSubscription:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        return await self._store.folder_views.watch(user)

    async def status(self, folder: Folder) -> FolderStatus:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        chain, unclaimed = await self._store.read(
            lambda reader: (chains.load_known(reader, folder.mailbox_id), recent.count(reader, folder.mailbox_id))
        )
        if chain is None:
            return FolderStatus(folder, 0, 0, 1, 0, 0, 0)
        return FolderStatus(
            folder, chain.messages, chain.unseen, chain.uidnext, chain.highestmodseq, chain.size_bytes, unclaimed
        )

    async def _create(self, user: str, name: str, use: str | None = None) -> Folder:
        mailbox_id, new_id = self._environment.new_guid(), self._environment.new_guid
        await self._coordinator.submit(CreateRequest(user, name, mailbox_id, new_id, use))
        found = await self._find_folder(user, name)
        if found is None:
            raise FolderNotFoundError(f"another client deleted the folder {name!r} as soon as it was created")
        return found

    async def quota(self, user: str) -> Quota:
        """See `MailStore`."""
        return await self._quotas.quota(user)

    async def check_quota(self, user: str, messages: int, size_bytes: int) -> None:
        """See `MailStore`."""
        await self._quotas.check(user, Usage(messages, size_bytes))

    # ---- mailboxes

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

    def receive(self) -> AbstractAsyncContextManager[BodySink]:
        """See `MailStore`."""
        return self._bodies.upload()

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """See `MailStore`. If the folder has been replaced, the new one gets the message."""
        [saved] = await self.save_all(folder, [message])
        return saved

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(_tree(user))
        folder, saved = await self._find_folder(user, INBOX), None
        if folder is None and user not in self._refused:
            try:
                saved = await self._deliver_first(user, message)
            except MailError:
                self._note_refused(user)
                raise
        return saved or await self.save(folder or await self.folder(user, INBOX), message)

    async def _deliver_first(self, user: str, message: NewMessage) -> SavedMessage | None:
        """Create the user's INBOX with a message in it; None if the message is still to be saved.

        That is so if the user's tree has another master, if there is an INBOX by now, and for a large message, which
        other nodes are offered first.
        """
        inbox = MailboxKey(user, self._environment.new_guid(), 0)
        async with self._quotas.room(user, _room_of([message])), AsyncExitStack() as stack:
            (mail,) = await self._prepared(stack, Folder(user, INBOX, inbox.mailbox_id, 0), [message])
            if mail.stored.parts is not None:
                return None
            await self._coordinator.router.claim_new(_tree(user), inbox)
            create = CreateRequest(user, INBOX, inbox.mailbox_id, self._environment.new_guid, first=mail)
            reply = await self._coordinator.submit(create)
        if not isinstance(reply, Saved):
            return None
        folder = self._folders.get(user, INBOX)  # in memory since the commit, unless it has been replaced
        if folder is None or folder.mailbox_id != inbox.mailbox_id:
            return SavedMessage(0, reply.uids[0], shown=False, entry=_entry(reply.dots))
        return SavedMessage(folder.uidvalidity, reply.uids[0], entry=_entry(reply.dots))

    def _note_refused(self, user: str) -> None:
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused.add(user)

    async def save_all(self, folder: Folder, messages: Sequence[NewMessage]) -> Sequence[SavedMessage]:
        """See `MailStore`. After an error, the messages that are there already are removed.

        Those that bring a UID or a GUID stay: they may have been there before, and can be saved again.
        """
        saved: list[tuple[Folder, Added]] = []
        if any(message.uid is not None for message in messages):
            self._check_neighbours()
        async with self._quotas.room(folder.user, _room_of(messages)):
            try:
                for some in _parts(messages):
                    async with AsyncExitStack() as stack:
                        for mails in _entries(await self._prepared(stack, folder, some)):
                            saved.append(await self._save(folder, mails))
                            folder = saved[-1][0]
            except MailError:
                # RFC 3502 section 6.3.11: no partial appending.
                is_new = all(message.uid is None and message.guid is None for message in messages)
                for to, added in saved if is_new else ():
                    await self._uid_retry.take_back(MailboxKey.of(to), added)
                raise
        return [
            SavedMessage(to.uidvalidity, uid, added.shown, _entry(added.dots))
            for to, added in saved
            for uid in added.uids
        ]

    async def _save(self, folder: Folder, mails: Sequence[NewMail]) -> tuple[Folder, Added]:
        """Save messages by one entry. Return the folder that has got them."""
        while True:
            try:
                return folder, await self._uid_retry.add(save_request(MailboxKey.of(folder), mails))
            except FolderNotFoundError:
                folder = await self._become(folder)

    async def _prepared(
        self, stack: AsyncExitStack, folder: Folder, messages: Iterable[NewMessage]
    ) -> Sequence[NewMail]:
        """Prepare the messages, whose attachments are held until the stack is left."""
        mails = list[NewMail]()
        for message in messages:
            if mails:
                await trio.lowlevel.checkpoint()  # each body is hashed and compressed
            mails.append(
                self._new_mail(folder, message, await stack.enter_async_context(self._bodies.prepared(message.body)))
            )
        return mails

    def _new_mail(self, folder: Folder, message: NewMessage, stored: StoredBody) -> NewMail:
        received_ms = self._environment.clock_ms() if message.received_ms is None else message.received_ms
        return NewMail(
            self._guid(folder, message, stored), received_ms, tuple(sorted(message.flags)), stored, message.uid
        )

    def _guid(self, folder: Folder, message: NewMessage, stored: StoredBody) -> bytes:
        """Return the message's GUID: what brings its UID along is the same message when it is saved again."""
        if message.guid is not None or message.uid is None:
            return message.guid or self._environment.new_guid()
        named = b"%b:%d:%b" % (folder.mailbox_id, message.uid, stored.content_hash)
        return blake2b(named, digest_size=ID_BYTES).digest()

    async def _become(self, folder: Folder) -> Folder:
        """Return the folder that now has this name, once this node knows of it; the master does already.

        Raises UnavailableError, FolderNotFoundError.
        """
        with trio.move_on_after(timing.ROUTER_SHOW_TIMEOUT_S):
            while True:
                self._folders.forget(folder.user)
                before = self._folders.changes
                now = await self.folder(folder.user, folder.name)
                if now != folder:
                    return now
                if before == self._folders.changes:
                    await self._store.tail.grown()
        raise UnavailableError("the folder has been replaced, and this node does not have the new one yet; try again")

    async def raise_numbers(self, folder: Folder, uidnext: int, modseq: int) -> None:
        """See `CoreMailStore`."""
        self._check_neighbours()
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        await self._coordinator.submit(RaiseRequest(MailboxKey.of(folder), uidnext, modseq))

    async def renumber(self, mailbox: MailboxView, wanted: Mapping[int, int]) -> None:
        """See `CoreMailStore`."""
        self._check_neighbours()
        found = [message for uid in sorted(wanted) if (message := mailbox.messages.get(uid)) is not None]
        for first in range(0, len(found), RENUMBERED_MAX):
            some = found[first : first + RENUMBERED_MAX]
            uids, guids = UidSet.of(one.uid for one in some), tuple(one.guid for one in some)
            key = MailboxKey.of(mailbox)
            await self._coordinator.submit(RenumberRequest(key, uids, guids, tuple(wanted[one.uid] for one in some)))

    async def know_as(self, folder: Folder, guid: bytes) -> None:
        """See `CoreMailStore`."""
        self._check_neighbours()
        await self._coordinator.readiness.wait(_tree(folder.user))
        value = (FOREIGN_GUID + guid.hex(), folder.mailbox_id.hex().encode())
        await self._coordinator.submit(AnnotateRequest(folder.user, NOWHERE, (value,)))

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
        await self._coordinator.readiness.wait(_tree(user))
        return await self._store.read(partial(queries.tree_changes, user=user))

    async def annotation_changes(self, user: str, folder: Folder | None) -> Sequence[AnnotationChange]:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(_tree(user))
        home = NOWHERE if folder is None else folder.mailbox_id
        return await self._store.read(partial(queries.annotation_changes, user=user, mailbox_id=home))

    async def mailbox_changes(self, folder: Folder, above: int) -> MailboxChanges:
        """See `CoreMailStore`."""
        await self._coordinator.readiness.wait(MailboxKey.of(folder))
        return await self._store.read(lambda reader: queries.mailbox_changes(reader, folder.mailbox_id, above))

    async def keep_uidvalidity(self, folder: Folder, uidvalidity: int | None) -> Folder:
        """See `CoreMailStore`."""
        self._check_neighbours()
        await self._coordinator.readiness.wait(_tree(folder.user))
        value = None if uidvalidity is None else b"%d" % uidvalidity
        await self._coordinator.submit(AnnotateRequest(folder.user, folder.mailbox_id, ((KEPT_UIDVALIDITY, value),)))
        self._folders.forget(folder.user)
        now = await self.folder(folder.user, folder.name)
        if uidvalidity not in {None, now.uidvalidity}:
            raise UnavailableError("this node does not show the folder's new UIDVALIDITY yet; try again")
        return now

    def _check_neighbours(self) -> None:
        """Raise UnavailableError if a neighbour does not know entries that raise numbers."""
        for link in self._coordinator.connections.links:
            check_raises(link)

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
        """See `MailStore`. A body that is missing or damaged here is fetched from another node and kept."""
        body = await self._bodies.open(message.content_hash)
        if body is None:
            with trio.move_on_after(timing.BODIES_PATIENCE_S):
                body = await self._bodies.fetch_to_read(message.content_hash)
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


def _tree(user: str) -> MailboxKey:
    return MailboxKey(user, tree_id(user), 0)


def _room_of(messages: Sequence[NewMessage]) -> Usage:
    """Return the number and the total size of messages to be stored."""
    return Usage(len(messages), sum(map(_size_bytes, messages)))


def _size_bytes(message: NewMessage) -> int:
    return len(message.body) if isinstance(message.body, bytes) else message.body.size_bytes


def _entry(dots: Sequence[Dot]) -> str | None:
    """Return the name of the entry that has brought new mail; if a repeated save rests on others, too, it is first."""
    return dots[0].name if dots else None


def _parts(messages: Iterable[NewMessage]) -> Iterator[list[NewMessage]]:
    """Yield the messages in parts that one request may bring, or a single larger one."""
    part, part_bytes = list[NewMessage](), 0
    for message in messages:
        size_bytes = _size_bytes(message)
        if part and (len(part) == SAVE_ALL_MAX or part_bytes + size_bytes > SAVE_ALL_BYTES):
            yield part
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += size_bytes
    if part:
        yield part


def _entries(mails: Sequence[NewMail]) -> Iterator[Sequence[NewMail]]:
    """Yield the messages by entry. One with attachments has an entry of its own, which may have to wait for them."""
    for is_small, some in groupby(mails, lambda mail: mail.stored.parts is None):
        if is_small:
            yield [*some]
        else:
            yield from ([one] for one in some)
