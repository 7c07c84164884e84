"""The mail of the node as the process of a door has it: both ends.

In the door, `RemoteMail` hashes and compresses small bodies, and hands the core what its database will have. A larger
body goes to the core in pieces, as it comes: the core alone knows which attachments are in flight. In the core, each
door has one `MailCalls`, which ends with the door, and whatever that was sending.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import cast

import trio

from protocol.units import KIB
from replicator.lmtp.services import Inboxes
from replicator.mail.mailstore import BodySink, NewMessage, ReceivedBody, SavedMessage
from replicator.runtime.signals import Signal
from replicator.store.bodies.body_rows import StoredBody
from replicator.workers.channel import Channel

PIECE_BYTES = 128 * KIB


class RemoteUpload:
    """A body that is in the core, or on its way there; see `ReceivedBody`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.size_bytes = 0


class RemoteSink:
    """A body being received by a door; see `BodySink`."""

    def __init__(self, channel: Channel, number: int, inline_max_bytes: int) -> None:
        self._channel = channel
        self._upload = RemoteUpload(number)
        self._inline_max_bytes = inline_max_bytes
        self._waiting = bytearray()
        self._has_begun = False

    async def write(self, data: bytes) -> None:
        """See `BodySink`."""
        self._waiting += data
        if len(self._waiting) > max(self._inline_max_bytes, PIECE_BYTES):
            await self._pass_on()

    async def finish(self) -> ReceivedBody:
        """See `BodySink`."""
        if not self._has_begun and len(self._waiting) <= self._inline_max_bytes:
            return StoredBody.of(bytes(self._waiting))
        await self._pass_on()
        self._upload.size_bytes = cast("int", await self._channel.call("finish", self._upload.number))
        return self._upload

    def close(self) -> None:
        """Discard what the core has not saved."""
        if self._has_begun:
            self._channel.tell("discard", self._upload.number)

    async def _pass_on(self) -> None:
        data, self._waiting, self._has_begun = bytes(self._waiting), bytearray(), True
        await self._channel.call("write", self._upload.number, data)


class RemoteMail:
    """The node's mail, as a door's process has it; see `MailStore`."""

    def __init__(self, channel: Channel, inline_max_bytes: int) -> None:
        self._channel = channel
        self._inline_max_bytes = inline_max_bytes
        self._numbers = count(1)

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[BodySink]:
        """See `MailStore`."""
        sink = RemoteSink(self._channel, next(self._numbers), self._inline_max_bytes)
        try:
            yield sink
        finally:
            sink.close()

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """See `MailStore`."""
        body = message.body
        if isinstance(body, RemoteUpload):
            brought: object = body.number
        else:
            stored = StoredBody.of(body) if isinstance(body, bytes) else body
            assert isinstance(stored, StoredBody), "what `receive` has given"
            brought = stored.content_hash, stored.size_bytes, stored.packed
        flags = tuple(sorted(message.flags))
        saved = await self._channel.call("deliver", user, brought, flags, message.received_ms)
        return SavedMessage(*cast("tuple[int, int, bool]", saved))


class _Upload:
    """A body that a door sends. `close` waits for what uses it: the door may have given that up in the middle."""

    def __init__(self, mail: Inboxes) -> None:
        self._stack = AsyncExitStack()
        self._mail = mail
        self._users = 0
        self._left = Signal()
        self.sink: BodySink | None = None
        self.body: ReceivedBody | None = None

    @asynccontextmanager
    async def used(self) -> AsyncIterator[BodySink]:
        """Keep it from being discarded while the block runs."""
        self._users += 1
        try:
            if self.sink is None:
                self.sink = await self._stack.enter_async_context(self._mail.receive())
            yield self.sink
        finally:
            self._users -= 1
            self._left.notify()

    async def close(self) -> None:
        """Discard what was not saved."""
        while self._users:
            await self._left.wait()
        await self._stack.aclose()


class MailCalls:
    """What the process of one door asks of the node's mail, in the core."""

    def __init__(self, channel: Channel, mail: Inboxes) -> None:
        self._mail = mail
        self._uploads: dict[int, _Upload] = {}
        channel.calls |= {
            "write": self._write,
            "finish": self._finish,
            "discard": self._discard,
            "deliver": self._deliver,
        }

    async def close(self) -> None:
        """Discard what the door was sending."""
        for number in [*self._uploads]:
            await self._discard(number)

    async def _write(self, number: int, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()  # nobody would discard what begins after that
        async with self._uploads.setdefault(number, _Upload(self._mail)).used() as sink:
            await sink.write(data)

    async def _finish(self, number: int) -> int:
        upload = self._uploads[number]
        async with upload.used() as sink:
            upload.body = await sink.finish()
            return upload.body.size_bytes

    async def _discard(self, number: int) -> None:
        if (upload := self._uploads.pop(number, None)) is not None:
            with trio.CancelScope(shield=True):
                await upload.close()

    async def _deliver(
        self,
        user: str,
        brought: int | tuple[bytes, int, bytes],
        flags: tuple[str, ...],
        received_ms: int | None,
    ) -> tuple[int, int, bool]:
        async with AsyncExitStack() as stack:
            if isinstance(brought, tuple):
                body: ReceivedBody = StoredBody(*brought)
            else:
                upload = self._uploads[brought]
                await stack.enter_async_context(upload.used())
                assert upload.body is not None, "a door delivers what it has finished"
                body = upload.body
            saved = await self._mail.deliver(user, NewMessage(body, frozenset(flags), received_ms))
        return saved.uidvalidity, saved.uid, saved.shown
