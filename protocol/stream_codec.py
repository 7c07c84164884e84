"""Codec of a link between nodes: decode bytes to commands and replies, and encode them.

A `Decoder` and an `Encoder` serve one connection and know nothing of each other: their owner matches replies to
requests and enforces which command must come first. At the end of a frame, either may switch to blocks with checksums
(docs/protocol.md, "Blocks"), and then to zstd inside of them ("Compression").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

from protocol.blocks import BlockReader, BlockWriter
from protocol.commands import Command, Reply
from protocol.decompression import Decompressor
from protocol.formatter import format_item
from protocol.framing import ContinuationNeeded, Frame, FrameLimits, Framer, FramingError
from protocol.parser import WIRE_LIMITS, ProtocolError, Request, Response, parse
from protocol.units import KIB, MIB

__all__ = [
    "WIRE_LIMITS",
    "ContinuationNeeded",
    "Decoder",
    "Encoder",
    "Item",
    "ProtocolError",
    "Request",
    "Response",
]

Item = Request | Response | ContinuationNeeded
"""Anything that a peer may send.

`ContinuationNeeded` comes only from a peer that does not use non-synchronising literals.
"""

CONTINUATION = b"+ OK\r\n"
"""Answer to `ContinuationNeeded` (RFC 3501 section 7.5)."""

WINDOW_LOG = 20
"""zstd window of 1 MiB: memory that each direction of each link costs; most mails fit within it."""
PAUSE_BYTES = MIB
"""Decompressed bytes after which a reader should let others go on: they take half a millisecond."""
PAUSE_STEPS = 16
"""Steps of decompression after which it should do so, too, however little they yield: to read the heads of their blocks
takes a millisecond or two.
"""
LARGE_TEXT_BYTES, LARGE_BYTES = 16 * KIB, 64 * KIB
"""Bytes of a frame's text, and of all of it, that take 5 ms to parse; beyond them, parsing is worth a thread."""
COMPRESSION_LEVEL = 1
"""zstd level: on links between data centres with two cores per node, speed matters more than the last percent."""


def is_large(frame: Frame) -> bool:
    """Return True if the frame takes long to parse."""
    return len(frame.text) > LARGE_TEXT_BYTES or len(frame.text) + sum(map(len, frame.literals)) > LARGE_BYTES


class Decoder:
    """Decoder of the peer's bytes into commands and replies. `limits` bound its memory, whatever the peer sends.

    `line_bytes` counts what it was fed, `plain_bytes` what that was without blocks and compression. A ProtocolError
    ends the decoder: the rest of the stream cannot be told from commands, so every later call raises the same error.
    """

    def __init__(self, limits: FrameLimits = WIRE_LIMITS) -> None:
        self._framer = Framer(limits)
        self._blocks: BlockReader | None = None
        self._decompressor: Decompressor | None = None
        self._error: ProtocolError | None = None
        self.line_bytes = self.plain_bytes = 0

    def feed(self, data: bytes) -> Iterator[Item]:
        """Take bytes and return an iterator over the complete items, in order; exhaust it before the next call.

        The iterator parses an item only when it is asked for it, so that `start_decompression` may be called between
        two items. It raises ProtocolError at the first invalid bytes, after it has yielded all items before them.
        """
        return self._items(self.frames(data))

    def frames(self, data: bytes) -> Iterator[Frame | ContinuationNeeded | None]:
        """Do the same, but leave it to the caller to parse the frames: large ones are worth a thread.

        After each `PAUSE_BYTES` that were decompressed, and after `PAUSE_STEPS`, it yields None: a few bytes may hold
        gigabytes, many may be empty blocks, and the caller may want to let others go on.
        """
        if self._error is not None:
            raise self._error
        self.line_bytes += len(data)
        if self._blocks is None:
            self._receive(data)
        else:
            self._blocks.receive(data)
        return self._frames()

    def start_blocks(self) -> None:
        """Treat all bytes after the last item as blocks, including those that were fed already."""
        assert self._blocks is None, "a stream has one sequence of blocks"
        assert self._decompressor is None, "a stream is compressed inside of its blocks"
        self._blocks = BlockReader()
        self._blocks.receive(self._detached())

    def start_decompression(self) -> None:
        """Treat all bytes after the last item as one zstd stream, including those that were fed already."""
        assert self._decompressor is None, "a stream is compressed once"
        self._decompressor = Decompressor()
        self._decompressor.receive(self._detached())

    def _items(self, frames: Iterator[Frame | ContinuationNeeded | None]) -> Iterator[Item]:
        try:
            for event in frames:
                if event is not None:
                    yield parse(event) if isinstance(event, Frame) else event
        except ProtocolError as error:
            self._error = error
            raise

    def _frames(self) -> Iterator[Frame | ContinuationNeeded | None]:
        decompressed = steps = 0
        try:
            while True:
                event = self._framer.next_event()
                if event is not None:
                    assert isinstance(event, Frame | ContinuationNeeded), "all literals of the wire are held"
                    yield event
                elif (size := self._decompress_step()) is None:
                    if not self._next_block():
                        return
                else:
                    decompressed, steps = decompressed + size, steps + 1
                    if decompressed >= PAUSE_BYTES or steps == PAUSE_STEPS:
                        decompressed = steps = 0
                        yield None
        except FramingError as error:
            self._error = ProtocolError(f"after {error.text[:24]!r}: {error}")
            raise self._error from None
        except ProtocolError as error:
            self._error = error
            raise

    def _receive(self, data: bytes) -> None:
        if self._decompressor is None:
            self._frame(data)
        else:
            self._decompressor.receive(data)

    def _frame(self, data: bytes) -> None:
        self.plain_bytes += len(data)
        self._framer.receive(data)

    def _detached(self) -> bytes:
        """Return the bytes that were taken for plain ones, and are not."""
        data = self._framer.detach()
        self.plain_bytes -= len(data)
        return data

    def _next_block(self) -> bool:
        """Read the next block. Return False if there is none, or the stream has no blocks."""
        content = self._blocks.next_content() if self._blocks is not None else None
        if content is None:
            return False
        self._receive(content)
        return True

    def _decompress_step(self) -> int | None:
        """Decompress a little more for the framer. Return its size, or None if no compressed bytes are left."""
        data = None if self._decompressor is None else self._decompressor.step()
        if data is None:
            return None
        self._frame(data)
        return len(data)


class Encoder:
    """Encoder of commands and replies. Each call returns a complete unit: the peer can read all of it once it is sent.

    A value that the protocol cannot express raises ValueError, and then nothing has been encoded. `plain_bytes` counts
    what was encoded, `line_bytes` what that has become by compression and blocks.
    """

    def __init__(self, limits: FrameLimits = WIRE_LIMITS) -> None:
        self._limits = limits
        self._blocks: BlockWriter | None = None
        self._compressor: zstandard.ZstdCompressionObj | None = None
        self.line_bytes = self.plain_bytes = 0

    def request(self, tag: str | None, command: Command) -> bytes:
        """Encode a command; `tag` is None if no reply is wanted."""
        return self.batch([Request(tag, command)])

    def response(self, tag: str, reply: Reply) -> bytes:
        """Encode the reply to the peer's request with this tag."""
        return self.batch([Response(tag, reply)])

    def continuation(self) -> bytes:
        """Encode the permission to send the literal that the peer's `ContinuationNeeded` announced."""
        return self._encoded(CONTINUATION)

    def batch(self, items: Iterable[Request | Response]) -> bytes:
        """Encode several items at once. With compression they share one flush, which costs bytes and time."""
        return self._encoded(b"".join([format_item(item, self._limits) for item in items]))

    def start_blocks(self) -> None:
        """Put everything from now on into blocks."""
        assert self._blocks is None, "a stream has one sequence of blocks"
        assert self._compressor is None, "a stream is compressed inside of its blocks"
        self._blocks = BlockWriter()

    def start_compression(self) -> None:
        """Encode everything from now on as one zstd stream."""
        assert self._compressor is None, "a stream is compressed once"
        parameters = zstandard.ZstdCompressionParameters.from_level(COMPRESSION_LEVEL, window_log=WINDOW_LOG)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()

    def _encoded(self, data: bytes) -> bytes:
        self.plain_bytes += len(data)
        if self._compressor is not None:
            data = self._compressor.compress(data) + self._compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if self._blocks is not None:
            data = self._blocks.write(data)
        self.line_bytes += len(data)
        return data
