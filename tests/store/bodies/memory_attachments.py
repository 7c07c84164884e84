"""An attachment store in memory that counts references, and fails at a step that the test names."""

from __future__ import annotations

import errno
import hashlib
from collections import Counter
from dataclasses import dataclass, field

from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, AttachedSlice
from replicator.store.bodies.recipe import Recipe


@dataclass(frozen=True)
class MemoryHolding:
    hash: bytes
    holder: int


@dataclass
class MemoryAttachments:
    """Attachments in memory. With `fails_at`, that step, counted from 0, raises OSError."""

    contents: dict[bytes, bytes] = field(default_factory=dict)
    held: Counter[bytes] = field(default_factory=Counter)
    open: int = 0
    builds: int = 0
    fails_at: int | None = None
    keeps: bool = True

    def build(self) -> MemoryConstruction:
        self.step()
        self.open += 1
        self.builds += 1
        return MemoryConstruction(self)

    def unlink(self, holding: MemoryHolding) -> None:
        assert self.held[holding.hash] > 0
        self.held[holding.hash] -= 1
        if not self.held[holding.hash]:
            del self.held[holding.hash], self.contents[holding.hash]

    def step(self) -> None:
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise OSError(errno.ENOSPC, "no space left")


class MemoryConstruction:
    def __init__(self, store: MemoryAttachments) -> None:
        self._store, self._hasher, self._data = store, hashlib.sha256(), bytearray()
        self._is_open = True

    def write(self, data: bytes) -> None:
        self._store.step()
        assert data
        assert self._is_open
        self._hasher.update(data)
        if self._store.keeps:
            self._data += data

    def finish(self) -> MemoryHolding:
        self._store.step()
        self.abandon()
        digest = self._hasher.digest()
        self._store.contents[digest] = bytes(self._data)
        self._store.held[digest] += 1
        return MemoryHolding(digest, self._store.builds)

    def abandon(self) -> None:
        self._store.open -= self._is_open
        self._is_open = False


def read(recipe: Recipe, contents: dict[bytes, bytes], start: int, end: int) -> bytes:
    """Return octets of a body, after verification of every chunk."""
    return b"".join(
        part if isinstance(part, bytes) else octets(part, contents[part.attached.hash])
        for part in recipe.slices(start, end)
    )


def octets(part: AttachedSlice, content: bytes) -> bytes:
    chunks = {number: content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES] for number in part.chunks}
    assert 1 <= len(chunks) <= (1 if part.attached.coding is None else 2)
    assert all(part.attached.verify(number, chunk) for number, chunk in chunks.items())
    start, end = part.source
    joined = b"".join(chunks.values())
    assert joined == content[start:end]
    found = part.octets(joined)
    assert len(found) == part.end - part.start <= CHUNK_BYTES
    return found
