"""The connection to the other side of a sync: items in both directions, with deadlines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import TypeVar

import trio

from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.wire.items import Deletions, Item
from replicator.dsync.wire.reader import Event, Mark, Reader
from replicator.dsync.wire.streams import StreamEncoder
from replicator.dsync.wire.writer import END_OF_LIST, END_OF_TEXT, hello, line_of

RECEIVE_BYTES = 16 << 10
"""Bytes read at once: some 250 records."""

SEND_BYTES = 16 << 10
LIST_BYTES_MAX = 768 << 20
"""Memory that the items of one list would take at most as objects: a million changes would take a third."""

IDLE_S = 600.0
"""Seconds for which a peer may send nothing, or read nothing, at the door and where this side has begun.

As long as a Dovecot waits for another one: it is silent while it opens a mailbox, and reads a huge one without an index
for minutes. With less, a sync of such a mailbox would end there each time.
"""

T = TypeVar("T", bound=Item)


class Peer:
    """The other side. Raises PeerGoneError if it leaves or falls silent, DsyncError if it breaks the protocol."""

    def __init__(self, stream: trio.abc.Stream, received: bytes = b"") -> None:
        """`received`: bytes of the conversation that have arrived already."""
        self._stream = stream
        self._reader = Reader()
        self._reader.receive(received)
        self._output = bytearray()

    async def greet(self) -> None:
        """Send the hello of this side."""
        await self._send(hello())

    # ---- receiving

    async def next(self) -> Event:
        """Return what comes next, after sending all that waits to be sent."""
        while (event := await self._read()) is None:
            await self.flush()
            try:
                with trio.fail_after(IDLE_S):
                    data = await self._stream.receive_some(RECEIVE_BYTES)
            except trio.TooSlowError as error:
                raise PeerGoneError(f"nothing has come from the peer for {IDLE_S:.0f} seconds") from error
            except trio.BrokenResourceError as error:
                raise PeerGoneError("the peer has left") from error
            if not data:
                raise PeerGoneError("the peer has left")
            self._reader.receive(bytes(data))
        return event

    async def _read(self) -> Event | None:
        if self._reader.is_behind_long_line:
            return await trio.to_thread.run_sync(self._reader.next)
        return self._reader.next()

    async def one(self, kind: type[T]) -> T:
        """Return the next item, which must be of this kind."""
        event = await self.next()
        if not isinstance(event, kind):
            raise _unexpected(event, kind)
        return event

    async def one_or_end(self, kind: type[T]) -> T | None:
        """Return the next item of a list of this kind; None at its end."""
        event = await self.next()
        if event is Mark.END_OF_LIST:
            return None
        if not isinstance(event, kind):
            raise _unexpected(event, kind)
        return event

    async def all(self, kind: type[T], most: int) -> list[T]:
        """Return the items of a list of this kind, which may have so many."""
        return [item async for part in self.parts(kind, most) for item in part]

    async def parts(self, kind: type[T], most: int) -> AsyncGenerator[Sequence[T], None]:
        """Yield the items of a list of this kind as they come in, some at a time, so that many are read quickly.

        They may be so many.
        """
        number = size_bytes = 0
        while (item := await self.one_or_end(kind)) is not None:
            size_bytes += self._reader.weight
            part = [item, *self._reader.more(kind)]
            number += len(part)
            size_bytes += self._reader.weight
            if number > most or size_bytes > LIST_BYTES_MAX:
                limits = f"{most} items of the kind {kind.__name__}, or than {LIST_BYTES_MAX >> 20} MiB of them"
                raise DsyncError(f"the peer sent more than {limits}")
            yield part
            await trio.lowlevel.checkpoint()  # the next ones may be here already

    async def text(self) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the text that follows an item."""
        while isinstance(event := await self.next(), bytes):
            yield event

    # ---- sending

    async def send(self, item: Item) -> None:
        """Send an item, soon."""
        is_long = isinstance(item, Deletions)
        await self._send(await trio.to_thread.run_sync(line_of, item) if is_long else line_of(item))

    async def send_list(self, items: Iterable[Item]) -> None:
        """Send a list of items."""
        for item in items:
            self._output += line_of(item)
            if len(self._output) >= SEND_BYTES:
                await self.flush()
        await self.end_list()

    async def end_list(self) -> None:
        """End a list of items."""
        await self._send(END_OF_LIST)

    async def send_text(self, pieces: AsyncIterator[bytes]) -> None:
        """Send the text that belongs to the last item."""
        encoder = StreamEncoder()
        async for piece in pieces:
            await self._send(encoder.encode(piece))
        await self._send(END_OF_TEXT)

    async def flush(self) -> None:
        """Send what waits."""
        if not self._output:
            return
        output, self._output = bytes(self._output), bytearray()
        try:
            with trio.fail_after(IDLE_S):
                await self._stream.send_all(output)
        except trio.TooSlowError as error:
            raise PeerGoneError(f"the peer has not read for {IDLE_S:.0f} seconds") from error
        except trio.BrokenResourceError as error:
            raise PeerGoneError("the peer has left") from error

    async def _send(self, data: bytes) -> None:
        self._output += data
        if len(self._output) >= SEND_BYTES:
            await self.flush()


def _unexpected(event: Event, kind: type[object]) -> DsyncError:
    found = event.name if isinstance(event, Mark) else type(event).__name__
    return DsyncError(f"the peer sent {found} where {kind.__name__} was due")
