"""Collection of an incoming body's pieces: octets kept in the recipe, and attachments being built.

One attachment is written at a time. Until all of them are handed to the body's owner, they can be released together.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from replicator.mime.base64_lines import Coding
from replicator.store.bodies.attachment_ranges import Attached, ChunkHasher
from replicator.store.bodies.recipe import INLINE_TOTAL_MAX, Piece, Recipe


class AttachmentReference(Protocol):
    """A reference to an attachment."""

    @property
    def hash(self) -> bytes:
        """SHA-256 of the attachment."""
        ...


H = TypeVar("H", bound=AttachmentReference)
H_co = TypeVar("H_co", bound=AttachmentReference, covariant=True)


class AttachmentConstruction(Protocol[H_co]):
    """An attachment that is being written."""

    def write(self, data: bytes) -> None:
        """Append. Raises OSError."""
        ...

    def finish(self) -> H_co:
        """Put the attachment on disk and return a reference to it. Raises OSError."""
        ...

    def abandon(self) -> None:
        """Discard an unfinished attachment. May be called again."""
        ...


class Builder(Protocol[H]):
    """The part of the attachment store that incoming bodies need."""

    def build(self) -> AttachmentConstruction[H]:
        """Begin an attachment. Raises OSError."""
        ...

    def unlink(self, holding: H) -> None:
        """Release a reference. Raises OSError."""
        ...


class Pieces(Generic[H]):
    """The pieces of one body, in their order."""

    def __init__(self, builder: Builder[H]) -> None:
        self._builder = builder
        self._pieces: list[Piece] = []
        self._inline = bytearray()  # not among the pieces yet
        self._inline_left = INLINE_TOTAL_MAX
        self._construction: AttachmentConstruction[H] | None = None
        self._hasher = ChunkHasher()
        self._lines = 0
        self._holdings: dict[bytes, H] = {}

    def inline(self, data: bytes) -> bytes:
        """Append inline octets to the recipe. Return those for which there is no room."""
        assert self._construction is None, "an attachment is closed before anything follows it"
        fitting = data[: self._inline_left]
        self._inline += fitting
        self._inline_left -= len(fitting)
        return data[len(fitting) :]

    def attach(self, data: bytes) -> None:
        """Append octets to the open attachment, or to a new one if none is open. Raises OSError."""
        if not data:
            return
        if self._construction is None:
            self._close_inline()
            self._construction = self._builder.build()
            self._hasher, self._lines = ChunkHasher(), 0
        self._construction.write(data)
        self._hasher.update(data)
        self._lines += data.count(b"\n")

    def close(self, coding: Coding | None = None, *, opaque: bool = False) -> None:
        """Finish the open attachment, if any. It is referenced once, however often it occurs in the body.

        Raises OSError.
        """
        if self._construction is None:
            return
        holding = self._construction.finish()
        self._construction = None
        size, hashes = self._hasher.size_bytes, self._hasher.finish()
        lines = self._lines if coding is None else coding.lines(size)
        self._pieces.append(Attached(holding.hash, size, lines, hashes, coding, opaque))
        if self._holdings.setdefault(holding.hash, holding) is not holding:
            self._builder.unlink(holding)

    def finish(self) -> tuple[Recipe, tuple[H, ...]]:
        """Return the recipe and the references to its attachments, which belong to the caller from here on."""
        assert self._construction is None, "all attachments are closed"
        self._close_inline()
        holdings = tuple(self._holdings.values())
        self._holdings.clear()
        return Recipe(tuple(self._pieces)), holdings

    def abandon(self) -> None:
        """Release all attachments, as far as the disk allows: a sweep does the rest. May be called again."""
        if self._construction is not None:
            self._construction.abandon()
            self._construction = None
        while self._holdings:
            _, holding = self._holdings.popitem()
            with suppress(OSError):
                self._builder.unlink(holding)

    def _close_inline(self) -> None:
        if self._inline:
            self._pieces.append(bytes(self._inline))
            self._inline.clear()
