"""Writer of a large part's content into attachments.

Base64 is stored decoded as far as encoding reproduces it; if that fails early, in the first octets examined, the
content is stored as it came. The rest after the decoded lines is kept inline if it is small. If those lines end within
a line, the rest becomes another attachment, since inline it would begin a line in the skeleton that the body does not
have.
"""

from __future__ import annotations

from typing import Generic

from replicator.mime.base64_lines import Decoded, Decoder
from replicator.store.bodies.recipe_builder import H, Pieces


class AttachmentWriter(Generic[H]):
    """The writer of one part's content, of at least `part_min` octets. All methods may raise OSError."""

    def __init__(self, pieces: Pieces[H], part_min: int, *, is_base64: bool) -> None:
        self._pieces, self._part_min = pieces, part_min
        self._decoder = Decoder() if is_base64 else None
        self._has_begun = False
        self._held = bytearray()  # the first octets; later the first octets that are not decoded
        self._is_decoding = is_base64

    def write(self, data: bytes) -> None:
        """Add the next octets."""
        if self._decoder is None:
            self._pieces.attach(data)
        elif self._has_begun:
            self._take(self._decoder, self._decoder.write(data))
        else:
            self._held += data
            if len(self._held) >= self._part_min:
                self._begin(self._decoder)

    def finish(self) -> bytes:
        """Finish the content. Return the octets to keep inline."""
        assert self._has_begun or self._decoder is None, "smaller bodies are not cut out"
        if self._decoder is not None:
            self._take(self._decoder, self._decoder.finish())
        self._pieces.close()
        return bytes(self._held)

    def _begin(self, decoder: Decoder) -> None:
        self._has_begun = True
        held, self._held = bytes(self._held), bytearray()
        first = decoder.write(held[: self._part_min])
        if decoder.has_ended:
            self._decoder = None
            self._pieces.attach(held)
            return
        self._take(decoder, first)
        self._take(decoder, decoder.write(held[self._part_min :]))

    def _take(self, decoder: Decoder, decoded: Decoded) -> None:
        self._pieces.attach(decoded.data)
        if not decoder.has_ended:
            return
        if self._is_decoding:
            self._is_decoding = False
            self._pieces.close(decoder.coding)
        self._follow(decoded.rest, may_be_inline=decoder.coding is None or decoder.coding.is_closed)

    def _follow(self, rest: bytes, *, may_be_inline: bool) -> None:
        self._held += rest
        if self._held and (not may_be_inline or len(self._held) >= self._part_min):
            self._decoder = None
            self._pieces.attach(bytes(self._held))
            self._held.clear()
