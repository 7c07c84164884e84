"""Blocks with checksums, in which a link without TLS carries all that follows the HELLOs (docs/protocol.md, "Blocks").

A block is the length of its content (4 bytes, big-endian), a check, the content, and a second check. A check is 8 bytes
of BLAKE2b over everything before it in this direction, since the first block. So an altered, lost, repeated or moved
octet goes unnoticed once in 2^64 times; and since the length has a check of its own, no reader waits for octets that
will never come. Whoever alters octets on purpose can compute checks, too: only TLS keeps those out.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from protocol.parser import ChangedError
from protocol.units import KIB

BLOCK_BYTES = 64 * KIB
"""Content of one block at most: a reader holds so much until it has seen the check."""

_LENGTH_BYTES, _CHECK_BYTES = 4, 8
_HEAD_BYTES = _LENGTH_BYTES + _CHECK_BYTES


class BlockWriter:
    """The writer of one direction."""

    def __init__(self) -> None:
        self._written = blake2b(digest_size=_CHECK_BYTES)

    def write(self, data: bytes) -> bytes:
        """Return the octets in blocks."""
        pieces: list[bytes | memoryview] = []
        with memoryview(data) as view:
            for start in range(0, len(data), BLOCK_BYTES):
                content = view[start : start + BLOCK_BYTES]
                pieces += self._checked(len(content).to_bytes(_LENGTH_BYTES))
                pieces += self._checked(content)
            return b"".join(pieces)

    def _checked(self, part: bytes | memoryview) -> tuple[bytes | memoryview, bytes]:
        self._written.update(part)
        check = self._written.digest()
        self._written.update(check)
        return part, check


class BlockReader:
    """The reader of one direction: `receive` octets, and then take the content until `next_content` returns None."""

    def __init__(self) -> None:
        self._read = blake2b(digest_size=_CHECK_BYTES)
        self._buffer = bytearray()
        self._length: int | None = None  # of the block whose content is awaited

    def receive(self, data: bytes) -> None:
        """Take octets from the connection. Read all content before the next call, so that memory stays bounded."""
        self._buffer += data

    def next_content(self) -> bytes | None:
        """Return the content of the next block, or None if more octets are needed. Raises ChangedError."""
        if self._length is None:
            length = self._next_part(_LENGTH_BYTES)
            if length is None:
                return None
            self._length = int.from_bytes(length)
            if not 0 < self._length <= BLOCK_BYTES:
                raise ChangedError(f"a block of {self._length} bytes; it has 1 to {BLOCK_BYTES}")
        content = self._next_part(self._length)
        if content is not None:
            self._length = None
        return content

    def _next_part(self, size: int) -> bytes | None:
        """Take the next part and its check off the buffer, and return the part; None if they are not here yet."""
        end = size + _CHECK_BYTES
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:  # one copy instead of two
            part, check = bytes(view[:size]), bytes(view[size:end])
        self._read.update(part)
        if self._read.digest() != check:
            raise ChangedError("a block has a wrong checksum: the connection changes what it carries")
        self._read.update(check)
        del self._buffer[:end]
        return part


def contents(data: bytes) -> Iterator[bytes]:
    """Yield the content of whole blocks without comparing checks, for records that begin after the first block."""
    at = 0
    while at < len(data):
        start = at + _HEAD_BYTES
        end = start + int.from_bytes(data[at : at + _LENGTH_BYTES])
        yield data[start:end]
        at = end + _CHECK_BYTES
