"""Attachments as pieces of message texts: what of one is to be read, and proved, for some octets of the text.

An attachment is read in chunks of `CHUNK_BYTES`, each of which has a hash in the recipe, so that nothing is given out
that is not what came in. A slice of the text is made of one chunk or, as base64 does not keep to their borders, of two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.units import KIB
from replicator.mime.base64_lines import Coding

CHUNK_BYTES = 128 * KIB  # part of the format of recipes; and what each of those who handle a large text holds in memory
HASH_BYTES = 32
CHUNK_HASH_BYTES = 16  # of the SHA-256 of a chunk


@dataclass(frozen=True, slots=True)
class Attached:
    """A piece of a text that is an attachment of `size_bytes` octets, written in base64 if there is a `coding`.

    `lines`: line feeds in the piece. `opaque`: there are headers and delimiters in it.
    `chunk_hashes`: those of all chunks, joined.
    """

    hash: bytes
    size_bytes: int
    lines: int
    chunk_hashes: bytes = field(repr=False)
    coding: Coding | None = None
    opaque: bool = False

    @property
    def length(self) -> int:
        """Octets of the text."""
        return self.size_bytes if self.coding is None else self.coding.length(self.size_bytes)

    @property
    def chunk_count(self) -> int:
        """How many chunks it has."""
        return len(self.chunk_hashes) // CHUNK_HASH_BYTES

    def verify(self, number: int, chunk: bytes) -> bool:
        """Whether this is chunk `number` of the attachment, counted from 0."""
        at = number * CHUNK_HASH_BYTES
        return _chunk_hash(chunk) == self.chunk_hashes[at : at + CHUNK_HASH_BYTES]

    def slices(self, start: int, end: int) -> Iterator[AttachedSlice]:
        """The octets of the piece from `start` up to `end`."""
        for at in range(start - start % CHUNK_BYTES, end, CHUNK_BYTES):
            yield AttachedSlice(self, max(start, at), min(at + CHUNK_BYTES, end))


@dataclass(frozen=True, slots=True)
class AttachedSlice:
    """Octets of a piece from `start` up to `end`, at most `CHUNK_BYTES`, and what of the attachment makes them."""

    attached: Attached
    start: int
    end: int

    @property
    def chunks(self) -> range:
        """The numbers of the one or two chunks that are to be read. They overlap those of the next slice."""
        start, end = self._source
        return range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))

    @property
    def source(self) -> tuple[int, int]:
        """The same as octets of the attachment, from where up to where."""
        chunks = self.chunks
        return chunks.start * CHUNK_BYTES, min(chunks.stop * CHUNK_BYTES, self.attached.size_bytes)

    def octets(self, chunks: bytes) -> bytes:
        """The octets of the text, of the chunks that were read and verified, joined."""
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
    """The hashes of an attachment's chunks, while it is written."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._hashes = bytearray()
        self._current = hashlib.sha256()

    def update(self, data: bytes) -> None:
        """The next octets."""
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
        """All of them, joined."""
        if self.size_bytes % CHUNK_BYTES:
            self._close()
        return bytes(self._hashes)

    def _close(self) -> None:
        self._hashes += self._current.digest()[:CHUNK_HASH_BYTES]
        self._current = hashlib.sha256()


def _chunk_hash(chunk: bytes) -> bytes:
    return hashlib.sha256(chunk).digest()[:CHUNK_HASH_BYTES]
