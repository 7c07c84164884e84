"""Bodies as the doors read them: from memory, or assembled from attachments while being read."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias

from protocol.commands import Parts
from replicator.mail.mailstore import BodyReader
from replicator.mime.skeleton import Skeleton
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, Attached
from replicator.store.bodies.body_rows import MAX_BODY_BYTES
from replicator.store.bodies.recipe import Recipe

log = logging.getLogger(__name__)

OpenBody: TypeAlias = Callable[[bytes], Awaitable[BodyReader | None]]
"""Opens a body by its hash: see `Bodies.open`."""


@dataclass(frozen=True, slots=True)
class PlainBody:
    """A body in memory. See `replicator.mail.mailstore.BodyReader`."""

    raw: bytes = field(repr=False)

    @property
    def skeleton(self) -> Skeleton:
        """See `BodyReader`."""
        return Skeleton(self.raw)

    async def check(self, start: int, end: int) -> None:
        """See `BodyReader`."""

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """See `BodyReader`."""
        for at in range(start, min(end, len(self.raw)), CHUNK_BYTES):
            yield self.raw[at : min(at + CHUNK_BYTES, end)]


class Chunks(Protocol):
    """A source of attachment chunks."""

    async def chunk(self, attached: Attached, holding: Holding | None, number: int) -> bytes:
        """Return one verified chunk. Raises ContentUnavailableError."""
        ...


@dataclass(frozen=True)
class LargeBody:
    """A body with attachments, each held here under its hash in `holdings`, or else read from other nodes."""

    recipe: Recipe
    chunks: Chunks = field(repr=False)
    holdings: Mapping[bytes, Holding] = field(repr=False)

    @cached_property
    def skeleton(self) -> Skeleton:
        """See `BodyReader`."""
        return self.recipe.skeleton()

    async def check(self, start: int, end: int) -> None:
        """See `BodyReader`."""
        checked: Attached | None = None
        for piece in self.recipe.slices(start, end):
            if not isinstance(piece, bytes) and piece.attached is not checked:
                checked = piece.attached
                await self.chunks.chunk(checked, self.holdings.get(checked.hash), piece.chunks[0])

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """See `BodyReader`."""
        read: dict[int, bytes] = {}  # chunks of the current attachment: base64 lines cross chunk borders
        attached: Attached | None = None
        for piece in self.recipe.slices(start, end):
            if isinstance(piece, bytes):
                yield piece
                continue
            if piece.attached is not attached:
                attached, read = piece.attached, {}
            holding = self.holdings.get(attached.hash)
            read = {
                number: read[number] if number in read else await self.chunks.chunk(attached, holding, number)
                for number in piece.chunks
            }
            yield piece.octets(b"".join(read.values()))


def skeleton_of(message: bytes | Parts | None) -> Skeleton | None:
    """Return the skeleton of a body as the database has it; None if the body or its recipe is damaged."""
    if not isinstance(message, Parts):
        return None if message is None else Skeleton(message)
    recipe = recipe_of(message)
    return None if recipe is None else recipe.skeleton()


def recipe_of(message: Parts) -> Recipe | None:
    """Unpack the message's recipe. Returns None and logs it if the recipe is invalid or does not fit the body's size.

    No error is raised, since one bad body must not keep others away.
    """
    try:
        recipe = Recipe.unpack(message.recipe)
    except ValueError as error:
        log.warning("body %s counts as lost: its recipe is invalid: %s", message.content_hash.hex(), error)
        return None
    if recipe.length == message.size <= MAX_BODY_BYTES:
        return recipe
    log.warning(
        "body %s counts as lost: the length in its recipe, %d octets, is wrong or too large",
        message.content_hash.hex(),
        recipe.length,
    )
    return None
