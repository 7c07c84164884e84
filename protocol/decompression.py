"""Decompression of a link's zstd stream (RFC 8878), a few blocks at a time.

Four bytes may stand for a block of 128 KiB, so a decompressor that gets all bytes at once may return gigabytes. This
one reads the heads of the blocks, which tell where each ends, and takes in a few blocks with each step.
"""

from __future__ import annotations

import zstandard

from protocol.parser import ProtocolError
from protocol.units import MIB

MAX_WINDOW_BYTES = 8 * MIB
"""Bytes of zstd window: the size that RFC 8878 section 3.1.1.1.2 asks every decoder to accept, and no more."""
STEP_BLOCKS = 16
"""Blocks of one step. Each has at most 128 KiB (RFC 8878 section 3.1.1.2.4), so a step yields at most 2 MiB."""

_FRAME_HEAD_MIN_BYTES = 5  # which tell how long the whole head is
_BLOCK_HEAD_BYTES = 3
_REPEATED = 1  # type of a block whose content is one byte, however long it is


class Decompressor:
    """The decompressor of one direction: `receive` bytes, and then call `step` until it returns None.

    The stream is one zstd frame, which must not end.
    """

    def __init__(self) -> None:
        self._stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
        self._received = bytearray()
        self._head = bytearray()  # what was taken of the next head: the frame's, then one for each block
        self._is_begun = False  # the frame's head was taken
        self._content_left = 0  # bytes of the present block that are still to be taken

    def receive(self, data: bytes) -> None:
        """Take bytes from the connection. Call `step` until it returns None before the next call."""
        self._received += data

    def step(self) -> bytes | None:
        """Return the decompressed data of the next blocks; None if no bytes are left. Raises ProtocolError."""
        if not self._received:
            return None
        size = self._step_bytes()
        taken = bytes(self._received[:size])
        del self._received[:size]
        try:
            data = self._stream.decompress(taken)
        except zstandard.ZstdError as error:
            raise ProtocolError(f"the compressed stream is damaged: {error}") from None
        if self._stream.eof:
            raise ProtocolError("the compressed stream ended, but it must last as long as the connection")
        return data

    def _step_bytes(self) -> int:
        """Return the number of bytes to take: those of a few blocks, as far as they have come."""
        at = blocks = 0
        while at < len(self._received) and blocks < STEP_BLOCKS:
            if not self._content_left:
                at = self._read_head(at)
            content = min(self._content_left, len(self._received) - at)
            self._content_left -= content
            at += content
            blocks += 1
        return at

    def _read_head(self, at: int) -> int:
        """Read the next head from there on, as far as it has come. Return its end."""
        while at < len(self._received) and (missing := self._head_bytes() - len(self._head)):
            part = self._received[at : at + missing]
            self._head += part
            at += len(part)
        if len(self._head) < self._head_bytes():
            return at
        if self._is_begun:
            head = int.from_bytes(self._head, "little")
            self._content_left = 1 if head >> 1 & 3 == _REPEATED else head >> 3
        elif not self._head.startswith(zstandard.FRAME_HEADER):
            raise ProtocolError("the compressed stream is damaged: it does not begin as a zstd frame")
        self._is_begun = True
        self._head.clear()
        return at

    def _head_bytes(self) -> int:
        if self._is_begun:
            return _BLOCK_HEAD_BYTES
        if len(self._head) < _FRAME_HEAD_MIN_BYTES:
            return _FRAME_HEAD_MIN_BYTES
        return zstandard.frame_header_size(bytes(self._head))
