"""Texts of mails that have come before their turn, in the scratch file of their mailbox's sync.

The user's quota is checked before: else a mailbox that is refused in the end would fill the disk first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import trio

from protocol.units import MIB
from replicator.dsync.replica import ReplicaMailbox

PIECE_BYTES = 64 << 10
CHECKED_BYTES = MIB
"""Bytes after which the quota is checked again."""

Places = Sequence[range]
"""Where the pieces of a text stand."""


class HeldTexts:
    """The texts of one mailbox."""

    def __init__(self, box: ReplicaMailbox) -> None:
        self._box = box
        self._number = self._size_bytes = 0
        self._checked_bytes = -CHECKED_BYTES

    async def add(self, text: AsyncGenerator[bytes, None]) -> Places:
        """Write a text, and return where it stands. Raises QuotaExceededError, DiskFullError, and as `text`."""
        self._number += 1
        places: list[range] = []
        async with aclosing(text):
            async for piece in text:
                self._size_bytes += len(piece)
                if self._size_bytes >= self._checked_bytes + CHECKED_BYTES:
                    self._checked_bytes = self._size_bytes
                    await self._box.check_room(self._number, self._checked_bytes)
                at = await trio.to_thread.run_sync(self._box.scratch.write, piece)
                start = places.pop().start if places and places[-1].stop == at else at
                places.append(range(start, at + len(piece)))
        return places

    async def read(self, places: Places) -> AsyncGenerator[bytes, None]:
        """Yield the text that stands there. Raises UnavailableError."""
        for place in places:
            for at in range(place.start, place.stop, PIECE_BYTES):
                size_bytes = min(PIECE_BYTES, place.stop - at)
                yield await trio.to_thread.run_sync(self._box.scratch.read, at, size_bytes)
