"""Ranges of attachments: the chunks to read and verify for a range of a body's octets.

An attachment is read in chunks of `CHUNK_BYTES`. The recipe has a hash of each chunk, so only octets that came in are
ever given out. A slice of the body needs one chunk or, since base64 does not align with chunks, two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.units import KIB
from replicator.mime.base64_lines import Coding

CHUNK_BYTES = 128 * KIB  # part of the recipe format, and the memory held by each task that handles a large body
HASH_BYTES = 32
CHUNK_HASH_BYTES = 16  # prefix of a chunk's SHA-256


@dataclass(frozen=True, slots=True)
class Attached:
    """A piece of a body stored as an attachment of `size_bytes` octets, base64-encoded in the body if `coding` is set.

    `lines`: line feeds in the piece. `opaque`: the piece has headers and delimiters in it. `chunk_hashes`: the hashes
    of all chunks, joined.
    """

    hash: bytes
    size_bytes: int
    lines: int
    chunk_hashes: bytes = field(repr=False)
    coding: Coding | None = None
    opaque: bool = False

    @property
    def length(self) -> int:
        """Length of the piece in the body, in octets."""
        return self.size_bytes if self.coding is None else self.coding.length(self.size_bytes)

    @property
    def chunk_count(self) -> int:
        """The number of chunks."""
        return len(self.chunk_hashes) // CHUNK_HASH_BYTES

    def verify(self, number: int, chunk: bytes) -> bool:
        """Return True if this is chunk `number` of the attachment, counted from 0."""
        at = number * CHUNK_HASH_BYTES
        return _chunk_hash(chunk) == self.chunk_hashes[at : at + CHUNK_HASH_BYTES]

    def slices(self, start: int, end: int) -> Iterator[AttachedSlice]:
        """Yield the slices that make up the piece's octets from `start` up to `end`."""
        for at in range(start - start % CHUNK_BYTES, end, CHUNK_BYTES):
            yield AttachedSlice(self, max(start, at), min(at + CHUNK_BYTES, end))


@dataclass(frozen=True, slots=True)
class AttachedSlice:
    """A range of a piece's octets, `start` up to `end`, at most `CHUNK_BYTES`, and its source in the attachment."""

    attached: Attached
    start: int
    end: int

    @property
    def chunks(self) -> range:
        """The numbers of the one or two chunks to read. They overlap those of the next slice."""
        start, end = self._source
        return range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))

    @property
    def source(self) -> tuple[int, int]:
        """The octet range of these chunks in the attachment: start and end."""
        chunks = self.chunks
        return chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, self.attached.size_bytes)

    def octets(self, chunks: bytes) -> bytes:
        """Return the slice's octets of the body, given the verified chunks joined."""
        start, end = self._source
        origin = start - start % CHUNK_BYTES
        data = chunks[start - origin : end - origin]
        coding = self.attached.coding
        return data if coding is None else coding.encode(self.attached.size_bytes, self.start, self.end, data)

    @property
    def _source(self) -> tuple[int, int]:
        coding = self.attached.coding
        if coding is None:
            return self.start, self.end
        return coding.source(self.attached.size_bytes, self.start, self.end)


class ChunkHasher:
    """The hasher of an attachment's chunks, used while the attachment is written."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._hashes = bytearray()
        self._current = hashlib.sha256()

    def update(self, data: bytes) -> None:
        """Add the next octets."""
        with memoryview(data) as view:
            at = 0
            while at < len(data):
                room = CHUNK_BYTES - self.size_bytes % CHUNK_BYTES
                piece = view[at : at + room]
                self._current.update(piece)
                self.size_bytes += len(piece)
                at += len(piece)
                piece.release()
                if self.size_bytes % CHUNK_BYTES == 0:
                    self._close()

    def finish(self) -> bytes:
        """Return all chunk hashes, joined."""
        if self.size_bytes % CHUNK_BYTES:
            self._close()
        return bytes(self._hashes)

    def _close(self) -> None:
        self._hashes += self._current.digest()[:CHUNK_HASH_BYTES]
        self._current = hashlib.sha256()


def _chunk_hash(chunk: bytes) -> bytes:
    return hashlib.sha256(chunk).digest()[:CHUNK_HASH_BYTES]
