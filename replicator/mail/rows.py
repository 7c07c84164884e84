"""Many rows of one size, of which those beyond the first ones are in a scratch file.

So they take no more memory, however many they are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from replicator.mail.scratch import Scratch

BLOCK_ROWS = 1_024
"""Rows that are written and read together: 50 KB of the largest ones."""

BLOCKS_IN_MEMORY = 16
"""16,384 rows: 0.8 MB of the largest ones."""

KEY_BYTES = 4


class Rows:
    """The rows, in the order in which they are added. Each begins with a key of four bytes, the lowest one first.

    Without a scratch file all are in memory.
    """

    def __init__(self, row_bytes: int, scratch: Scratch | None = None) -> None:
        self._row_bytes = row_bytes
        self.scratch = scratch
        self._blocks: list[bytearray | int] = []  # whole ones: in memory, or where they are in the file
        self._last = bytearray()  # the rest
        self._first_keys = array("I")  # of all blocks
        self._read: tuple[int, bytes | bytearray] = -1, b""  # the block that was read last

    def add(self, row: bytes) -> None:
        """Add a row. Each `BLOCK_ROWS`-th one may wait for a disk. Raises DiskFullError, UnavailableError."""
        if not self._last:
            self._first_keys.append(_key(row, 0))
        self._last += row
        if len(self._last) == BLOCK_ROWS * self._row_bytes:
            is_kept = self.scratch is None or len(self._blocks) < BLOCKS_IN_MEMORY
            self._blocks.append(self._last if self.scratch is None or is_kept else self.scratch.write(self._last))
            self._last = bytearray()

    def row(self, at: int) -> bytes:
        """Return the row at a position, counted from 0. Raises IndexError, UnavailableError."""
        if not 0 <= at < len(self):
            raise IndexError(at)
        block, place = divmod(at, BLOCK_ROWS)
        return bytes(self._block(block)[place * self._row_bytes : (place + 1) * self._row_bytes])

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the rows of these positions, some at a time, as their bytes. Raises UnavailableError."""
        stop = min(stop, len(self))
        while start < stop:
            block, place = divmod(start, BLOCK_ROWS)
            end = min(stop - start + place, BLOCK_ROWS)
            yield bytes(self._block(block)[place * self._row_bytes : end * self._row_bytes])
            start += end - place

    def overwrite(self, at: int, offset: int, data: bytes) -> None:
        """Write bytes over others of the row at a position, behind the key. Raises DiskFullError, UnavailableError."""
        block, place = divmod(at, BLOCK_ROWS)
        begin = place * self._row_bytes + offset
        found = self._blocks[block] if block < len(self._blocks) else self._last
        if isinstance(found, bytearray):
            found[begin : begin + len(data)] = data
        elif self.scratch is not None:
            self.scratch.replace(found + begin, data)
            self._read = -1, b""

    def first_at(self, key: int, start: int = 0) -> int:
        """Return the position of the first row, from `start` on, whose key is not lower. Keys are to ascend."""
        block = bisect_left(self._first_keys, key) - 1
        if block < 0:
            return min(start, len(self))
        rows = self._block(block)
        low, high = 0, len(rows) // self._row_bytes
        while low < high:
            middle = (low + high) // 2
            if _key(rows, middle * self._row_bytes) < key:
                low = middle + 1
            else:
                high = middle
        return max(start, block * BLOCK_ROWS + low)

    def search(self, data: bytes, offset: int, start: int, stop: int) -> Iterator[int]:
        """Yield the positions of the rows, of these, that have these bytes at an offset. It looks through all."""
        for rows in self.pieces(start, stop):
            at = rows.find(data)
            while at >= 0:
                place, rest = divmod(at, self._row_bytes)
                if rest == offset:
                    yield start + place
                at = rows.find(data, at + 1)
            start += len(rows) // self._row_bytes

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK_ROWS + len(self._last) // self._row_bytes

    def _block(self, number: int) -> bytes | bytearray:
        if number == len(self._blocks):
            return self._last
        found = self._blocks[number]
        if isinstance(found, bytearray) or self.scratch is None:
            return found if isinstance(found, bytearray) else b""
        if self._read[0] != number:
            self._read = number, self.scratch.read(found, BLOCK_ROWS * self._row_bytes)
        return self._read[1]


def _key(rows: bytes | bytearray, at: int) -> int:
    return int.from_bytes(rows[at : at + KEY_BYTES], "little")
