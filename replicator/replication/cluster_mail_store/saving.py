"""Operations of the mail store that bring new messages: delivery, and what clients save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from hashlib import blake2b
from itertools import groupby

import trio

from protocol.commands import Saved
from protocol.values import Dot
from replicator.errors import FolderNotFoundError, MailError, UnavailableError
from replicator.mail.mailstore import INBOX, BodySink, Folder, NewMessage, SavedMessage
from replicator.replication import timing
from replicator.replication.cluster_mail_store.folders import FolderOperations, tree_of
from replicator.replication.cluster_mail_store.synchronization import check_neighbours
from replicator.replication.coordinator import Coordinator
from replicator.replication.writes.quotas import Quotas
from replicator.replication.writes.requests import SAVE_ALL_BYTES, SAVE_ALL_MAX, CreateRequest, save_request
from replicator.replication.writes.uid_retry import Added, UidRetry
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.chain import Usage
from replicator.store.db.queries import MailboxKey
from replicator.store.log.sequencing.sequencer import NewMail
from replicator.store.store import Store
from resync.entry import ID_BYTES

REFUSED_MAX = 10_000  # users


class SaveOperations(FolderOperations):
    """Operations of a mail store on new messages: each becomes part of a request to the mailbox's master."""

    def __init__(self, store: Store, coordinator: Coordinator, environment: Environment, quotas: Quotas) -> None:
        super().__init__(store, coordinator, environment)
        self._quotas = quotas
        self._bodies = coordinator.bodies
        self._uid_retry = UidRetry(
            store, coordinator.submit, timeout_s=timing.REQUEST_TIMEOUT_S + timing.ROUTER_SHOW_TIMEOUT_S
        )
        self._refused: set[str] = set()  # new users whose first mail was refused: each attempt would claim a mailbox

    def receive(self) -> AbstractAsyncContextManager[BodySink]:
        """See `MailStore`."""
        return self._bodies.upload()

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """See `MailStore`. If the folder has been replaced, the new one gets the message."""
        [saved] = await self.save_all(folder, [message])
        return saved

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """See `MailStore`."""
        await self._coordinator.readiness.wait(tree_of(user))
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
            await self._coordinator.router.claim_new(tree_of(user), inbox)
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
            check_neighbours(self._coordinator)
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
