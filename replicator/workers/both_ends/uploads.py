"""Bodies on their way from a door to the core: both ends.

A door hashes and compresses small bodies, and hands the core what its database will have. A larger body goes to the
core in pieces, as it comes: the core alone knows which attachments are in flight. What a door was sending when it ended
is discarded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import TypeAlias, cast

import trio

from protocol.units import KIB, MIB
from replicator.lmtp.services import Inboxes
from replicator.mail.mailstore import BodySink, NewMessage, ReceivedBody
from replicator.runtime.signals import Signal
from replicator.store.bodies.body_rows import StoredBody
from replicator.workers.channel import Channel

PIECE_BYTES = 128 * KIB
BROUGHT_BYTES = 4 * MIB  # packed, of the messages of one call; what is more goes ahead in calls of its own

Brought: TypeAlias = tuple[int | tuple[bytes, int, bytes], frozenset[str], int | None]
"""A message as a call brings it: its body, flags and time. The body is as the database has it, or is an upload's."""


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


class RemoteUploads:
    """The bodies that a door sends."""

    def __init__(self, channel: Channel, inline_max_bytes: int) -> None:
        self._channel = channel
        self._inline_max_bytes = inline_max_bytes
        self._numbers = count(1)

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[BodySink]:
        """See `MailStore.receive`."""
        sink = RemoteSink(self._channel, next(self._numbers), self._inline_max_bytes)
        try:
            yield sink
        finally:
            sink.close()

    @asynccontextmanager
    async def brought(self, messages: Sequence[NewMessage]) -> AsyncIterator[list[Brought]]:
        """Yield the messages as one call brings them, which is to be made in the block."""
        left, brought = BROUGHT_BYTES, list[Brought]()
        async with AsyncExitStack() as ahead:
            for message in messages:
                body = message.body
                if isinstance(body, bytes):
                    sink = await ahead.enter_async_context(self.receive())
                    for start in range(0, len(body), PIECE_BYTES):
                        await sink.write(body[start : start + PIECE_BYTES])
                    body = await sink.finish()
                if isinstance(body, RemoteUpload):
                    brought.append((body.number, message.flags, message.received_ms))
                    continue
                assert isinstance(body, StoredBody), "what `receive` has given"
                packed = body.content_hash, body.size_bytes, body.packed
                left -= len(body.packed)
                number = next(self._numbers)
                if left < 0:
                    ahead.callback(self._channel.tell, "discard", number)
                    await self._channel.call("bring", number, packed)
                brought.append((number if left < 0 else packed, message.flags, message.received_ms))
            yield brought


class _Upload:
    """A body that a door sends. `close` waits for the calls that use it, which the door may have cancelled."""

    def __init__(self, mail: Inboxes) -> None:
        self._stack = AsyncExitStack()
        self._mail = mail
        self._users = 0
        self._left = Signal()
        self.sink: BodySink | None = None
        self.body: ReceivedBody | None = None

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keep it from being discarded while the block runs."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left.notify()

    async def opened(self) -> BodySink:
        """Return its sink."""
        if self.sink is None:
            self.sink = await self._stack.enter_async_context(self._mail.receive())
        return self.sink

    async def close(self) -> None:
        """Discard what was not saved."""
        while self._users:
            await self._left.wait()
        await self._stack.aclose()


class Uploads:
    """The bodies that one door sends, in the core."""

    def __init__(self, channel: Channel, mail: Inboxes) -> None:
        self._mail = mail
        self._uploads: dict[int, _Upload] = {}
        channel.calls |= {"write": self._write, "finish": self._finish, "bring": self._bring, "discard": self._discard}

    async def close(self) -> None:
        """Discard what the door was sending."""
        for number in [*self._uploads]:
            await self._discard(number)

    @asynccontextmanager
    async def messages(self, brought: Sequence[Brought]) -> AsyncIterator[list[NewMessage]]:
        """Yield the messages that a call has brought, whose bodies stay while the block runs."""
        async with AsyncExitStack() as stack:
            messages = list[NewMessage]()
            for of, flags, received_ms in brought:
                if isinstance(of, tuple):
                    body: ReceivedBody = StoredBody(*of)
                else:
                    upload = self._uploads[of]
                    await stack.enter_async_context(upload.used())
                    assert upload.body is not None, "a door saves what it has finished"
                    body = upload.body
                messages.append(NewMessage(body, flags, received_ms))
            yield messages

    async def _write(self, number: int, data: bytes) -> None:
        upload = self._uploads.setdefault(number, _Upload(self._mail))
        async with upload.used():
            sink = await upload.opened()
            await sink.write(data)

    async def _finish(self, number: int) -> int:
        upload = self._uploads[number]
        async with upload.used():
            sink = await upload.opened()
            upload.body = await sink.finish()
            return upload.body.size_bytes

    async def _bring(self, number: int, packed: tuple[bytes, int, bytes]) -> None:
        await trio.lowlevel.checkpoint()
        upload = self._uploads[number] = _Upload(self._mail)
        upload.body = StoredBody(*packed)

    async def _discard(self, number: int) -> None:
        if (upload := self._uploads.pop(number, None)) is not None:
            with trio.CancelScope(shield=True):
                await upload.close()
