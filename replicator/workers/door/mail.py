"""The mail of the node as the process of a door has it: `core.mail` is the core's end.

A door asks the core for each change, and for whatever must be as new as at the cluster's other nodes. It reads bodies,
outlines and lists of folders from the database itself, search texts from their file, and has views of its own
(`mail_feed`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple, cast

from protocol.commands import Parts
from protocol.values import UidSet
from replicator.errors import ContentUnavailableError
from replicator.mail.folder_watch import FolderSubscription
from replicator.mail.lookup import seen
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
)
from replicator.mail.view import MailboxView, Message
from replicator.runtime.environment import ThreadRunner, run_in_thread
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.bodies.body_reader import LargeBody, PlainBody, recipe_of
from replicator.store.bodies.body_rows import read_body, read_small_bodies
from replicator.store.bodies.outline_rows import outlines
from replicator.store.db.memory.folder_views import FolderViews
from replicator.store.db.memory.view_cache import Views
from replicator.store.db.queries import annotations_of, ordered_folders, subscriptions, view
from replicator.store.db.readers import Readers
from replicator.users import QuotaLimits
from replicator.workers.both_ends.mail_feed import FollowedViews
from replicator.workers.both_ends.uploads import RemoteUploads
from replicator.workers.channel import Channel
from replicator.workers.door.search_texts import DoorSearchTexts
from resync.entry import NOWHERE

SLICE_MESSAGES = 250
"""Messages that one frame names, which takes a millisecond or two."""


class Named(NamedTuple):
    """Messages that a call names as a view shows them. Those of the slice `number` have gone ahead."""

    user: str
    mailbox_id: bytes
    uidvalidity: int
    head: tuple[str, int] | None
    number: int
    messages: Sequence[Message]


class RemoteMail:
    """The node's mail, as a door's process has it; see `MailStore`. `run` has to run. Belongs to the event loop."""

    def __init__(
        self,
        channel: Channel,
        readers: Readers,
        search_texts: DoorSearchTexts,
        inline_max_bytes: int,
        run_in_thread: ThreadRunner = run_in_thread,
    ) -> None:
        self._channel = channel
        self._read = readers.read
        self._search_texts = search_texts
        self._run_in_thread = run_in_thread
        self._uploads = RemoteUploads(channel, inline_max_bytes)
        self._followed = FollowedViews(
            channel, Views(lambda key: readers.read(partial(view, key=key))), FolderViews(readers.read)
        )
        self._numbers = count(1)

    async def run(self) -> None:
        """Keep the views up to date, until cancelled."""
        await self._followed.run()

    async def wait_ready(self) -> None:
        """See `MailStore`."""
        await self._ask("wait_ready")

    # ---- folders

    async def folders(self, user: str) -> Sequence[Folder]:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        return await self._read(partial(ordered_folders, user=user))

    async def folder(self, user: str, name: str) -> Folder:
        """See `MailStore`."""
        return cast("Folder", await self._ask("folder", user, name))

    async def subscriptions(self, user: str) -> Sequence[str]:
        """See `MailStore`."""
        await self.folder(user, INBOX)  # once this node may show the user's folders
        return await self._read(lambda reader: sorted(subscriptions(reader, user)))

    async def annotations(self, user: str, folder: Folder | None) -> Mapping[str, bytes]:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        home = NOWHERE if folder is None else folder.mailbox_id
        return await self._read(partial(annotations_of, user=user, mailbox_id=home))

    async def annotated(self, user: str, name: str) -> Mapping[bytes, bytes]:
        """See `MailStore`."""
        return cast("Mapping[bytes, bytes]", await self._ask("annotated", user, name))

    async def annotate(self, user: str, folder: Folder | None, values: Mapping[str, bytes | None]) -> None:
        """See `MailStore`."""
        await self._ask("annotate", user, folder, values)

    async def create_folder(self, user: str, name: str, use: str | None = None) -> Folder:
        """See `MailStore`."""
        return cast("Folder", await self._ask("create_folder", user, name, use))

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        """See `MailStore`."""
        await self._ask("rename_folder", user, old, new)

    async def delete_folder(self, user: str, name: str) -> None:
        """See `MailStore`."""
        await self._ask("delete_folder", user, name)

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """See `MailStore`."""
        await self._ask("subscribe", user, name, subscribed)

    async def catch_up(self, user: str, name: str | None = None) -> bool:
        """See `MailStore`."""
        return cast("bool", await self._ask("catch_up", user, name))

    async def watch_folders(self, user: str) -> FolderSubscription:
        """See `MailStore`."""
        await self.folder(user, INBOX)
        return await self._followed.watch(user)

    async def status(self, folder: Folder) -> FolderStatus:
        """See `MailStore`."""
        return cast("FolderStatus", await self._ask("status", folder))

    async def count_recent(self, folder: Folder) -> int:
        """See `MailStore`."""
        return cast("int", await self._ask("count_recent", folder))

    async def quota(self, user: str) -> Quota:
        """See `MailStore`."""
        quota = cast("Quota", await self._ask("quota", user))
        return replace(quota, limits=QuotaLimits(*quota.limits))

    async def check_quota(self, user: str, messages: int, size_bytes: int) -> None:
        """See `MailStore`."""
        await self._ask("check_quota", user, messages, size_bytes)

    # ---- mailboxes

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        """See `MailStore`."""
        return await self._followed.open(folder)

    async def claim_recent(self, view: MailboxView) -> int:
        """See `MailStore`. Asks only if a message has come since the last session of this door claimed."""
        if view.uidnext <= view.recent_from:
            return view.recent_from
        where = Folder(view.user, "", view.mailbox_id, view.uidvalidity, view.own)
        first, claimed = cast("tuple[int, int]", await self._ask("claim_recent", where))
        view.recent_from = max(view.recent_from, claimed)
        return first

    def receive(self) -> AbstractAsyncContextManager[BodySink]:
        """See `MailStore`."""
        return self._uploads.receive()

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """See `MailStore`."""
        [saved] = await self.save_all(folder, [message])
        return saved

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """See `MailStore`."""
        async with self._uploads.brought([message]) as brought:
            return cast("SavedMessage", await self._ask("deliver", user, *brought))

    async def save_all(self, folder: Folder, messages: Sequence[NewMessage]) -> Sequence[SavedMessage]:
        """See `MailStore`."""
        async with self._uploads.brought(messages) as brought:
            return cast("Sequence[SavedMessage]", await self._ask("save_all", folder, brought))

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """See `MailStore`."""
        async with self._named(source, uids) as named:
            return cast("CopiedMessages", await self._ask("copy", named, destination))

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """See `MailStore`."""
        async with self._named(source, uids) as named:
            return cast("CopiedMessages", await self._ask("move", named, destination))

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
        async with self._named(mailbox, uids) as named:
            return cast("StoreResult", await self._ask("store_flags", named, added, removed, unchanged_since))

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        """See `MailStore`."""
        async with self._named(mailbox, uids) as named:
            await self._ask("expunge", named)

    # ---- bodies

    async def read_body(self, message: Message) -> BodyReader:
        """See `MailStore`. A body that is missing or damaged here is brought back by the core."""
        body = await self._opened(message)
        if body is None:
            is_large, packed = cast("tuple[bool, bytes]", await self._ask("body", message))
            found = Parts(message.content_hash, message.size_bytes, packed) if is_large else packed
            body = self._reader_of(message, found)
        if body is None:
            raise ContentUnavailableError("the body of this message is damaged at every reachable node")
        return body

    async def _opened(self, message: Message) -> BodyReader | None:
        return self._reader_of(message, await self._read(partial(read_body, content_hash=message.content_hash)))

    def _reader_of(self, message: Message, found: bytes | Parts | None) -> BodyReader | None:
        if not isinstance(found, Parts):
            return None if found is None else PlainBody(found)
        recipe = recipe_of(found)
        return None if recipe is None else LargeBody(recipe, _RemoteChunks(self._channel, message), {})

    async def read_bodies(self, messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
        """See `MailStore`."""
        hashes = [message.content_hash for message in messages]
        found = await self._read(partial(read_small_bodies, hashes=hashes, max_bytes=max_bytes))
        return {content_hash: PlainBody(body) for content_hash, body in found.items()}

    async def outlines(self, messages: Iterable[Message], version: int) -> Mapping[bytes, bytes]:
        """See `MailStore`."""
        return await self._read(partial(outlines, hashes=[one.content_hash for one in messages], version=version))

    async def search_texts(self, messages: Sequence[Message]) -> SearchTextSlice:
        """See `MailStore`."""
        return await self._search_texts.of([message.content_hash for message in messages])

    # ---- helpers

    async def _ask(self, name: str, *arguments: object) -> object:
        """Call the core. On return, the views show what the call has changed. Raises MailError."""
        try:
            return await self._channel.call(name, *arguments)
        finally:  # a call that fails may have changed a part
            await self._followed.caught_up()

    @asynccontextmanager
    async def _named(self, view: MailboxView, uids: UidSet) -> AsyncIterator[Named]:
        """Yield those of these messages that the view has, for one call, which is to be made in the block."""
        user, mailbox_id, uidvalidity, head, found = await seen(view, uids, self._run_in_thread)
        number = 0
        slices = [found[start : start + SLICE_MESSAGES] for start in range(0, len(found), SLICE_MESSAGES)] or [[]]
        if len(slices) > 1:
            number = next(self._numbers)
        try:
            for ahead in slices[:-1]:
                await self._channel.call("name", number, ahead)
            yield Named(user, mailbox_id, uidvalidity, head, number, slices[-1])
        finally:
            if number:
                self._channel.tell("forget", number)


class _RemoteChunks:
    """The attachments of a message, read by the core, which has them healed where they are damaged. See `Chunks`."""

    def __init__(self, channel: Channel, message: Message) -> None:
        self._channel = channel
        self._message = message

    async def chunk(self, attached: Attached, _holding: Holding | None, number: int) -> bytes:
        """See `Chunks`."""
        return cast("bytes", await self._channel.call("chunk", self._message, attached.hash, number))
