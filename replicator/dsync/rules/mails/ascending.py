"""Texts by UIDs that come in ascending order: each takes its length in UTF-8 and 14 bytes; many are in a file."""

from __future__ import annotations

import struct

from replicator.mail.rows import Rows
from replicator.mail.scratch import Scratch

_PLACE = struct.Struct("<IIIH")  # UID, block of texts, where the text begins there, and its length

BLOCK_BYTES = 64 << 10
BLOCKS_IN_MEMORY = 16


class AscendingTexts:
    """Texts of at most 65,535 bytes, by UIDs.

    With a scratch file, what is added or read may raise DiskFullError or UnavailableError.
    """

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._places = Rows(_PLACE.size, scratch)
        self._scratch = scratch
        self._blocks: list[bytearray | int] = []  # whole ones: in memory, or where they are in the file
        self._last = bytearray()  # the rest

    def add(self, uid: int, text: str) -> None:
        """Add the text of a UID above all others."""
        data = text.encode(errors="surrogateescape")
        self._places.add(_PLACE.pack(uid, len(self._blocks), len(self._last), len(data)))
        self._last += data
        if len(self._last) >= BLOCK_BYTES:
            is_kept = self._scratch is None or len(self._blocks) < BLOCKS_IN_MEMORY
            self._blocks.append(self._last if self._scratch is None or is_kept else self._scratch.write(self._last))
            self._last = bytearray()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, uid: int) -> str | None:
        """Return the text of a UID."""
        at = self._places.first_at(uid)
        if at == len(self._places):
            return None
        found, block, start, size_bytes = _PLACE.unpack(self._places.row(at))
        return self._text(block, start, size_bytes).decode(errors="surrogateescape") if found == uid else None

    def _text(self, block: int, start: int, size_bytes: int) -> bytes:
        texts = self._blocks[block] if block < len(self._blocks) else self._last
        if isinstance(texts, bytearray):
            return bytes(texts[start : start + size_bytes])
        return self._scratch.read(texts + start, size_bytes) if self._scratch is not None else b""
