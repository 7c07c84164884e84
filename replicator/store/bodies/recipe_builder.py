"""The pieces of a message text while it comes in: octets that are kept in the recipe, and attachments that are built.

One attachment is written at a time. Until all of them are given to the text's owner, they can be let go of together.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from replicator.mime.base64_lines import Coding
from replicator.store.bodies.attachment_ranges import Attached, ChunkHasher
from replicator.store.bodies.recipe import INLINE_TOTAL_MAX, Piece, Recipe


class Held(Protocol):
    """A reference to an attachment."""

    @property
    def hash(self) -> bytes:
        """SHA-256 of the attachment."""
        ...


H = TypeVar("H", bound=Held)
H_co = TypeVar("H_co", bound=Held, covariant=True)


class Construction(Protocol[H_co]):
    """An attachment that is being written."""

    def write(self, data: bytes) -> None:
        """Append. Raises OSError."""
        ...

    def finish(self) -> H_co:
        """It is on disk, and held. Raises OSError."""
        ...

    def abandon(self) -> None:
        """Forget what is not finished. May be called again."""
        ...


class Builder(Protocol[H]):
    """The attachment store, as far as texts that come in need it."""

    def build(self) -> Construction[H]:
        """Begin an attachment. Raises OSError."""
        ...

    def unlink(self, holding: H) -> None:
        """Let go of one. Raises OSError."""
        ...


class Pieces(Generic[H]):
    """The pieces of one text, in their order."""

    def __init__(self, builder: Builder[H]) -> None:
        self._builder = builder
        self._pieces: list[Piece] = []
        self._inline = bytearray()  # not among the pieces yet
        self._inline_left = INLINE_TOTAL_MAX
        self._construction: Construction[H] | None = None
        self._hasher = ChunkHasher()
        self._lines = 0
        self._holdings: dict[bytes, H] = {}

    def inline(self, data: bytes) -> bytes:
        """Append octets that stand in the recipe. Gives back those that there is no room for."""
        assert self._construction is None, "an attachment is closed before anything follows it"
        fitting = data[: self._inline_left]
        self._inline += fitting
        self._inline_left -= len(fitting)
        return data[len(fitting) :]

    def attach(self, data: bytes) -> None:
        """Append octets to the attachment that is open; to a new one if there is none. Raises OSError."""
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
        """Finish the attachment that is open, if there is one. It is held once, however often it is in the text.

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
        """The recipe, and the holdings of its attachments, which are the caller's from here on."""
        assert self._construction is None, "all attachments are closed"
        self._close_inline()
        holdings = tuple(self._holdings.values())
        self._holdings.clear()
        return Recipe(tuple(self._pieces)), holdings

    def abandon(self) -> None:
        """Let go of all attachments, as far as the disk lets them go: a sweep does the rest. May be called again."""
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
