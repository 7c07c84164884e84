"""A compressed connection (RFC 4978): DEFLATE without a header (RFC 1951), each way in one endless stream.

A few octets can stand for a thousand times as many, so what they stand for comes in pieces of the size that the caller
wants, with pauses: a client holds no more memory and no more of the event loop than by sending the same uncompressed.
"""

from __future__ import annotations

import zlib

import trio

from protocol.units import KIB

RECEIVED_BYTES = 64 * KIB  # compressed octets that are held at most

# 64 KiB of memory for a connection, a quarter of what zlib's defaults take: a server has thousands of connections, and
# mail becomes a twentieth larger. Each MiB takes some 20 ms.
_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 3, 13, 6


class DamagedStreamError(Exception):
    """The received octets are not valid DEFLATE."""


class DeflateStream(trio.abc.Stream):
    """Compression of both directions of `stream`. Raises what that stream raises."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL)
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._left = b""  # received, and not decompressed yet
        self._may_have_more = False  # the last piece was full

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send data so that the other side can decompress all of it. Takes milliseconds for 64 KiB."""
        await self._stream.send_all(self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH))

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next data, at most `max_bytes`; nothing at the end. Raises DamagedStreamError. Safe to cancel."""
        limit = max_bytes or RECEIVED_BYTES
        while not self._inflate.eof:
            if self._left or self._may_have_more:
                await trio.lowlevel.checkpoint()
            else:
                self._left = bytes(await self._stream.receive_some(RECEIVED_BYTES))
                if not self._left:
                    break
            try:
                data = self._inflate.decompress(self._left, limit)
            except zlib.error as error:
                raise DamagedStreamError(str(error)) from error
            self._left = self._inflate.unconsumed_tail
            self._may_have_more = len(data) == limit
            if data:
                return data
        return b""

    async def aclose(self) -> None:
        """See trio.abc.AsyncResource."""
        await self._stream.aclose()
