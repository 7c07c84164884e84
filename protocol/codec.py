"""Both directions of a link between nodes: bytes in, commands and replies out, and back.

A `Decoder` and an `Encoder` serve one connection. Each knows nothing of the other: matching replies to requests,
and what must come first, is their owner's business. Either may switch to zstd at the end of a frame
(docs/protocol.md, "Compression").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

from protocol.commands import Command, Reply
from protocol.formatter import format_item
from protocol.framing import ContinuationNeeded, Frame, FrameLimits, Framer, FramingError
from protocol.parser import WIRE_LIMITS, ProtocolError, Request, Response, parse
from protocol.units import MIB

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
"""What a peer may send. `ContinuationNeeded` only from one that does not use non-synchronising literals."""

CONTINUATION = b"+ OK\r\n"
"""Answer to `ContinuationNeeded` (RFC 3501 section 7.5)."""

WINDOW_LOG = 20
"""zstd looks back 1 MiB: that much memory for each direction of each link, and most mails lie within it."""
MAX_WINDOW_BYTES = 8 * MIB
"""What RFC 8878 section 3.1.1.1.2 wants every decoder to take, and no more."""
DECOMPRESSION_STEP = 64
"""Compressed bytes at a time. Four of them may stand for a block of 128 KiB, so that a step yields 2 MiB at most."""
COMPRESSION_LEVEL = 1
"""Links between data centres, two cores: speed before the last percent."""


class Decoder:
    """The peer's bytes to commands and replies. Its memory is bounded by `limits`, whatever comes.

    ProtocolError ends it: what follows cannot be told from commands, so it raises the same error from then on.
    """

    def __init__(self, limits: FrameLimits = WIRE_LIMITS) -> None:
        self._framer = Framer(limits)
        self._compressed = bytearray()
        self._decompressor: zstandard.ZstdDecompressionObj | None = None
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> Iterator[Item]:
        """Take bytes and iterate over what is complete, in order; exhaust it before the next call.

        An item is parsed when it is asked for, so that `start_decompression` may be called between two of them. The
        iterator raises ProtocolError where the peer's bytes go wrong, after all items before that place.
        """
        if self._error is not None:
            raise self._error
        if self._decompressor is None:
            self._framer.receive(data)
        else:
            self._compressed += data
        return self._items()

    def start_decompression(self) -> None:
        """All bytes after the last item are one zstd stream, those that were fed already too."""
        assert self._decompressor is None, "a stream is compressed once"
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        self._decompressor = decompressor.decompressobj()
        self._compressed += self._framer.detach()

    def _items(self) -> Iterator[Item]:
        try:
            while True:
                event = self._framer.next_event()
                if isinstance(event, Frame):
                    yield parse(event)
                elif event is not None:
                    assert isinstance(event, ContinuationNeeded), "all literals of the wire are held"
                    yield event
                elif not self._decompress_step():
                    return
        except FramingError as error:
            self._error = ProtocolError(f"after {error.text[:24]!r}: {error}")
            raise self._error from None
        except ProtocolError as error:
            self._error = error
            raise

    def _decompress_step(self) -> bool:
        """Give the framer a little more; False if there is nothing."""
        if not self._compressed or self._decompressor is None:
            return False
        step = bytes(self._compressed[:DECOMPRESSION_STEP])
        del self._compressed[:DECOMPRESSION_STEP]
        try:
            self._framer.receive(self._decompressor.decompress(step))
        except zstandard.ZstdError as error:
            raise ProtocolError(f"the compressed stream is damaged: {error}") from None
        if self._decompressor.eof:
            raise ProtocolError("the compressed stream ended; it has to last as long as the connection")
        return True


class Encoder:
    """Commands and replies to bytes. Each call's answer is complete: send it, and the peer can read all of it.

    A value that the protocol cannot say raises ValueError, and then nothing was encoded.
    """

    def __init__(self, limits: FrameLimits = WIRE_LIMITS) -> None:
        self._limits = limits
        self._compressor: zstandard.ZstdCompressionObj | None = None

    def request(self, tag: str | None, command: Command) -> bytes:
        """A command; `tag` None if no reply is wanted."""
        return self.batch([Request(tag, command)])

    def response(self, tag: str, reply: Reply) -> bytes:
        """The reply to the peer's request with this tag."""
        return self.batch([Response(tag, reply)])

    def continuation(self) -> bytes:
        """The peer may send the literal that its `ContinuationNeeded` has announced."""
        return self._compress(CONTINUATION)

    def batch(self, items: Iterable[Request | Response]) -> bytes:
        """Several at once: with compression they share one flush, which costs bytes and time."""
        return self._compress(b"".join([format_item(item, self._limits) for item in items]))

    def start_compression(self) -> None:
        """Whatever is encoded from now on is one zstd stream."""
        assert self._compressor is None, "a stream is compressed once"
        parameters = zstandard.ZstdCompressionParameters.from_level(COMPRESSION_LEVEL, window_log=WINDOW_LOG)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()

    def _compress(self, data: bytes) -> bytes:
        if self._compressor is None:
            return data
        return self._compressor.compress(data) + self._compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
