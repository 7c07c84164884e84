"""Writer of incoming message bodies: the content of large parts becomes attachments, the rest stays in the recipe.

A body of at most `inline_max` octets is not parsed. Beyond `INLINE_TOTAL_MAX` inline octets, the whole rest of the body
becomes one opaque attachment without parsing, which bounds the memory and the time that a hostile body costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic

from replicator.mime.splitter import BodyBegins, BodyData, BodyEnds, Event, Inline, Splitter
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES
from replicator.store.bodies.attachment_writer import AttachmentWriter
from replicator.store.bodies.recipe import INLINE_TOTAL_MAX, Recipe
from replicator.store.bodies.recipe_builder import Builder, H, Pieces


@dataclass(frozen=True, slots=True)
class TakenIn(Generic[H]):
    """A completely received body: the SHA-256 of its `size_bytes` octets, and its recipe.

    `holdings`: one for each distinct attachment, for the owner to record or to unlink.
    """

    content_hash: bytes
    size_bytes: int
    recipe: Recipe
    holdings: tuple[H, ...]


class BodyWriter(Generic[H]):
    """The writer of one body. Parts of `inline_max` octets or more become attachments.

    Everything blocks; one thread at a time. After an error all of the body's attachments are released. All methods may
    raise OSError.
    """

    def __init__(self, builder: Builder[H], inline_max: int) -> None:
        self._inline_max = min(inline_max, INLINE_TOTAL_MAX)
        self._pieces = Pieces(builder)
        self._hasher = hashlib.sha256()
        self._size_bytes = 0
        self._held = bytearray()  # the whole body, while it is small
        self._splitter: Splitter | None = None
        self._body: AttachmentWriter[H] | None = None
        self._is_opaque = False

    def write(self, data: bytes) -> None:
        """Add the next octets of the body."""
        with self._all_or_nothing():
            for at in range(0, len(data), CHUNK_BYTES):
                chunk = data[at : at + CHUNK_BYTES]
                self._hasher.update(chunk)
                self._size_bytes += len(chunk)
                self._take(chunk)

    def finish(self) -> TakenIn[H]:
        """Finish the body."""
        with self._all_or_nothing():
            if self._splitter is not None:
                self._handle(self._splitter.finish())
            self._handle([Inline(bytes(self._held))])
            self._pieces.close(opaque=self._is_opaque)
            recipe, holdings = self._pieces.finish()
        return TakenIn(self._hasher.digest(), self._size_bytes, recipe, holdings)

    def abandon(self) -> None:
        """Release all attachments of the body, unless it was finished. May be called again."""
        self._pieces.abandon()

    def _take(self, data: bytes) -> None:
        if self._is_opaque:
            self._pieces.attach(data)
        elif self._splitter is not None:
            self._handle(self._splitter.write(data))
        else:
            self._held += data
            if len(self._held) > self._inline_max:
                self._splitter = Splitter(self._inline_max)
                self._handle(self._splitter.write(bytes(self._held)))
                self._held.clear()
        if self._is_opaque and self._splitter is not None:
            self._handle(self._splitter.finish())
            self._splitter = None

    def _handle(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Inline(data) | BodyData(data) if self._is_opaque:
                    self._pieces.attach(data)
                case Inline(data):
                    self._inline(data)
                case BodyBegins(is_base64) if not self._is_opaque:
                    self._body = AttachmentWriter(self._pieces, max(1, self._inline_max), is_base64=is_base64)
                case BodyData(data) if self._body is not None:
                    self._body.write(data)
                case BodyEnds() if self._body is not None:
                    self._inline(self._body.finish())
                    self._body = None

    def _inline(self, data: bytes) -> None:
        beyond = self._pieces.inline(data)
        if beyond:
            self._is_opaque = True
            self._pieces.attach(beyond)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self.abandon)
            yield
            undo.pop_all()
