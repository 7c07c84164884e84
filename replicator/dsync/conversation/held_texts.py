"""Texts of mails that have come before their turn, in a nameless file among the node's data.

The user's quota is checked before: else a mailbox that is refused in the end would fill the disk first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from os import SEEK_END
from typing import BinaryIO

import trio

from protocol.units import MIB
from replicator.dsync.replica import ReplicaMailbox
from replicator.errors import DiskFullError, UnavailableError

PIECE_BYTES = 64 << 10
CHECKED_BYTES = MIB
"""Bytes after which the quota is checked again."""


class HeldTexts:
    """The file, in which texts stand one after another. Close it at the end."""

    def __init__(self, box: ReplicaMailbox) -> None:
        self._box = box
        self._file: BinaryIO | None = None
        self._number = 0
        self._checked_bytes = -CHECKED_BYTES

    def close(self) -> None:
        """Let the file vanish, also on a full disk, for which some of its last text may be left."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    async def add(self, text: AsyncGenerator[bytes, None]) -> range:
        """Write a text, and return where it stands. Raises QuotaExceededError, DiskFullError, and as `text`."""
        self._number += 1
        try:
            async with aclosing(text):
                return await self._add(text)
        except OSError as error:
            raise DiskFullError(f"the disk of this node takes no more: {error.strerror}; try later") from error

    async def _add(self, text: AsyncIterator[bytes]) -> range:
        if self._file is None:
            self._file = await trio.to_thread.run_sync(self._box.open_scratch)
        start = end = self._file.seek(0, SEEK_END)
        async for piece in text:
            if end + len(piece) >= self._checked_bytes + CHECKED_BYTES:
                self._checked_bytes = end + len(piece)
                await self._box.check_room(self._number, self._checked_bytes)
            end += await trio.to_thread.run_sync(self._file.write, piece)
        await trio.to_thread.run_sync(self._file.flush)  # else a full disk would show later, outside of this method
        return range(start, end)

    async def read(self, where: range) -> AsyncGenerator[bytes, None]:
        """Yield the text that stands there. Raises UnavailableError."""
        for at in range(where.start, where.stop, PIECE_BYTES):
            try:
                piece = await trio.to_thread.run_sync(self._piece, at, min(PIECE_BYTES, where.stop - at))
            except OSError as error:
                raise UnavailableError(f"the disk of this node cannot be read: {error.strerror}; try later") from error
            yield piece

    def _piece(self, at: int, size_bytes: int) -> bytes:
        if self._file is None:
            return b""
        self._file.seek(at)
        return self._file.read(size_bytes)
