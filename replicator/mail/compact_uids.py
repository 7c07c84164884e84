"""A set of UIDs in eight bytes for each of its ranges, where `protocol.values.UidSet` takes 120.

A mailbox whose users expunge mail may have as many ranges as mails.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from protocol.values import UidSet

TYPE: Final = "I"
"""Type code of the arrays: 32 bits, as UIDs have."""


class CompactUids:
    """The set. It grows by UIDs, nearly always by one above all others; what methods return are new sets."""

    __slots__ = ("_high", "_low")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: inclusive, ascending by their first UIDs."""
        self._low, self._high = array(TYPE), array(TYPE)  # of disjoint, non-adjacent ranges
        for low, high in ranges:
            self.extend(low, high)

    @classmethod
    def ascending(cls, uids: Iterable[int]) -> CompactUids:
        """Return the set of these UIDs, which ascend: they need not be in memory."""
        found = cls()
        for uid in uids:
            found.extend(uid, uid)
        return found

    @classmethod
    def unpacked(cls, packed: bytes) -> CompactUids:
        """Return the set that `packed` has returned. Raises ValueError."""
        bounds = array(TYPE)
        half, rest = divmod(len(packed), 2 * bounds.itemsize)
        if rest:
            raise ValueError("its ranges of UIDs are not whole")
        bounds.frombytes(packed)
        if sys.byteorder == "big":
            bounds.byteswap()
        found = cls()
        found._low, found._high = bounds[:half], bounds[half:]
        gaps = zip(found._high, found._low[1:], strict=False)
        if any(low > high for low, high in found.ranges()) or any(high + 1 >= low for high, low in gaps):
            raise ValueError("its ranges of UIDs do not ascend")
        if 0 in found:
            raise ValueError("it has the UID 0")
        return found

    def packed(self) -> bytes:
        """Return the set in its eight bytes for each range, alike on all machines."""
        bounds = self._low + self._high
        if sys.byteorder == "big":
            bounds.byteswap()
        return bounds.tobytes()

    def add(self, uid: int) -> None:
        """Add a UID."""
        low, high = self._low, self._high
        at = bisect_right(low, uid)
        if at and uid <= high[at - 1]:
            return
        extends, precedes = at > 0 and high[at - 1] == uid - 1, at < len(low) and low[at] == uid + 1
        if extends and precedes:
            high[at - 1] = high.pop(at)
            low.pop(at)
        elif extends:
            high[at - 1] = uid
        elif precedes:
            low[at] = uid
        else:
            low.insert(at, uid)
            high.insert(at, uid)

    def update(self, uids: Iterable[int]) -> None:
        """Add UIDs."""
        for uid in uids:
            self.add(uid)

    def extend(self, low: int, high: int) -> None:
        """Add an inclusive range that begins at or above the beginning of the last one."""
        if self._high and low <= self._high[-1] + 1:
            self._high[-1] = max(self._high[-1], high)
        else:
            self._low.append(low)
            self._high.append(high)

    def union(self, other: CompactUids) -> CompactUids:
        """Return the UIDs of both sets."""
        return CompactUids(merge(self.ranges(), other.ranges()))

    def without(self, other: CompactUids) -> CompactUids:
        """Return the UIDs of this set that the other one lacks."""
        found, gone = CompactUids(), other.ranges()
        cut = next(gone, None)
        for low, high in self.ranges():
            first = low
            while cut is not None and cut[0] <= high:
                if first < cut[0]:
                    found.extend(first, cut[0] - 1)
                first = max(first, cut[1] + 1)
                if cut[1] > high:
                    break
                cut = next(gone, None)
            if first <= high:
                found.extend(first, high)
        return found

    def up_to(self, highest: int) -> CompactUids:
        """Return the UIDs of this set that are not above this one."""
        return CompactUids((low, min(high, highest)) for low, high in self.ranges() if low <= highest)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges, `(low, high)`, both inclusive, in ascending order."""
        return zip(self._low, self._high, strict=True)

    @property
    def range_count(self) -> int:
        """Number of ranges."""
        return len(self._low)

    def as_uid_set(self) -> UidSet:
        """Return the set as the protocol has it. It should have few ranges."""
        return UidSet(tuple(self.ranges()))

    def __contains__(self, uid: int) -> bool:
        at = bisect_right(self._low, uid)
        return at > 0 and uid <= self._high[at - 1]

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges():
            yield from range(low, high + 1)

    def __len__(self) -> int:
        return sum(self._high) - sum(self._low) + len(self._low)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompactUids) and (self._low, self._high) == (other._low, other._high)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"CompactUids({self.as_uid_set()})"
