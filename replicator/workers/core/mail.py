"""The core's answers to calls of one door's process about the node's mail. `door.mail` is the other end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from protocol.units import MIB
from replicator.errors import ContentUnavailableError, MailError
from replicator.mail.lookup import SeenMessages
from replicator.mail.mailstore import CopiedMessages, Folder, MailStore, SavedMessage, StoreResult
from replicator.mail.view import MailboxView, Message
from replicator.store.bodies.body_reader import LargeBody, PlainBody
from replicator.workers.both_ends.mail_feed import MailFeed, Published
from replicator.workers.both_ends.uploads import Brought, Uploads
from replicator.workers.channel import Call, Channel
from replicator.workers.packing import Columns, dot_of, message_of

LARGE_BODIES = 4  # that are kept for the chunks of their attachments to be read one by one

BODY_BYTES_MAX = 8 * MIB  # of a body without attachments, which a frame has to hold


class CoreChanges(Protocol):
    """Changes of messages that a client has seen."""

    async def copy(self, seen: SeenMessages, destination: Folder) -> CopiedMessages:
        """See `MailStore`."""
        ...

    async def move(self, seen: SeenMessages, destination: Folder) -> CopiedMessages:
        """See `MailStore`."""
        ...

    async def store_flags(
        self, seen: SeenMessages, added: frozenset[str], removed: frozenset[str], unchanged_since: int | None
    ) -> StoreResult:
        """See `MailStore`."""
        ...

    async def expunge(self, seen: SeenMessages) -> None:
        """See `MailStore`."""
        ...


class CoreMail(MailStore, Protocol):
    """The node's mail, as the core has it."""

    @property
    def changes(self) -> CoreChanges:
        """Its changes of messages."""
        ...

    async def wait_mailbox(self, folder: Folder) -> None:
        """Return once this node may show the mailbox. Raises NotReadyError."""
        ...

    async def check_search_texts(self, hashes: Sequence[bytes]) -> None:
        """Have search texts made anew if those of these bodies are damaged, as the door has found."""
        ...


class MailCalls:
    """The mail calls of one door. `close` discards its unfinished uploads. Belongs to the event loop."""

    def __init__(self, channel: Channel, mail: CoreMail, store: Published) -> None:
        self._mail = mail
        self._feed = MailFeed(channel, store)
        self._uploads = Uploads(channel, mail)
        self._store = store
        self._named: dict[int, list[Message]] = {}
        self._large: OrderedDict[bytes, LargeBody] = OrderedDict()  # those read last, by content hash
        told = self._once_told
        channel.calls |= {
            "wait_ready": mail.wait_ready,
            "open": told(self._open),
            "folder": told(mail.folder),
            "annotated": mail.annotated,
            "annotate": told(mail.annotate),
            "create_folder": told(mail.create_folder),
            "rename_folder": told(mail.rename_folder),
            "delete_folder": told(mail.delete_folder),
            "subscribe": told(self._subscribe),
            "catch_up": told(mail.catch_up),
            "status": mail.status,
            "count_recent": mail.count_recent,
            "quota": mail.quota,
            "check_quota": mail.check_quota,
            "claim_recent": self._claim_recent,
            "deliver": told(self._deliver),
            "save_all": told(self._save_all),
            "copy": told(self._copy),
            "move": told(self._move),
            "store_flags": told(self._store_flags),
            "expunge": told(self._expunge),
            "body": self._body,
            "chunk": self._chunk,
            "check_search_texts": mail.check_search_texts,
        }
        channel.quick_calls |= {"name": self._name, "forget": self._forget, "damaged": self._note_damage}

    async def run(self) -> None:
        """Tell the door what changes, until cancelled."""
        await self._feed.run()

    async def close(self) -> None:
        """Discard what the door was sending, and tell it nothing any more."""
        self._feed.close()
        await self._uploads.close()

    def _once_told(self, act: Call) -> Call:
        """Have the door told what a call has changed before the call is answered."""

        async def call(*arguments: object) -> object:
            try:
                return await act(*arguments)
            finally:  # a call that fails may have changed a part
                await self._feed.told()

        return call

    async def _open(self, folder: Folder) -> None:
        await self._mail.wait_mailbox(folder)
        self._feed.follow(folder.mailbox_id)

    async def _subscribe(self, user: str, name: str, subscribed: bool) -> None:  # noqa: FBT001 (as in the frame)
        await self._mail.subscribe(user, name, subscribed=subscribed)

    async def _claim_recent(self, folder: Folder) -> tuple[int, int]:
        view = MailboxView(folder.mailbox_id, folder.user, folder.uidvalidity, 1, 0)
        return await self._mail.claim_recent(view), view.recent_from

    async def _deliver(self, user: str, brought: Brought) -> SavedMessage:
        async with self._uploads.messages([brought]) as [message]:
            return await self._mail.deliver(user, message)

    async def _save_all(self, folder: Folder, brought: Sequence[Brought]) -> Sequence[SavedMessage]:
        async with self._uploads.messages(brought) as messages:
            return await self._mail.save_all(folder, messages)

    # ---- messages that the door's view shows

    def _name(self, number: int, messages: Sequence[Columns]) -> None:
        self._named.setdefault(number, []).extend(map(message_of, messages))

    def _forget(self, number: int) -> None:
        self._named.pop(number, None)

    def _seen(self, named: Columns) -> SeenMessages:
        """Return the messages that the door has named, as its client has seen them."""
        user, mailbox_id, uidvalidity, head, number, last = named
        messages = self._named.pop(number, [])
        messages.extend(map(message_of, last))
        return SeenMessages(user, mailbox_id, uidvalidity, dot_of(head), messages)

    async def _copy(self, named: Columns, destination: Folder) -> CopiedMessages:
        return await self._mail.changes.copy(self._seen(named), destination)

    async def _move(self, named: Columns, destination: Folder) -> CopiedMessages:
        return await self._mail.changes.move(self._seen(named), destination)

    async def _store_flags(
        self, named: Columns, added: frozenset[str], removed: frozenset[str], unchanged_since: int | None
    ) -> StoreResult:
        return await self._mail.changes.store_flags(self._seen(named), added, removed, unchanged_since)

    async def _expunge(self, named: Columns) -> None:
        await self._mail.changes.expunge(self._seen(named))

    # ---- bodies

    async def _body(self, columns: Columns) -> tuple[bool, bytes]:
        """Return a body that the door has not found: its octets or, if it has attachments, its recipe."""
        body = await self._mail.read_body(message_of(columns))
        if isinstance(body, LargeBody):
            return True, body.recipe.pack()
        assert isinstance(body, PlainBody)
        if len(body.raw) > BODY_BYTES_MAX:
            raise ContentUnavailableError("the body of this message is on its way to this node; try later")
        return False, body.raw

    async def _chunk(self, columns: Columns, attachment_hash: bytes, number: int) -> bytes:
        message = message_of(columns)
        body = self._large.get(message.content_hash) or await self._mail.read_body(message)
        if isinstance(body, LargeBody):
            self._large[message.content_hash] = body
            self._large.move_to_end(message.content_hash)
            if len(self._large) > LARGE_BODIES:
                self._large.popitem(last=False)
            for attached in body.recipe.distinct:
                if attached.hash == attachment_hash:
                    return await body.chunks.chunk(attached, body.holdings.get(attachment_hash), number)
        raise ContentUnavailableError("the body of this message has just been replaced; try again")

    def _note_damage(self, text: str) -> None:
        """Note that the door has met a damaged part of the database."""
        self._store.damage.note(MailError(text))
