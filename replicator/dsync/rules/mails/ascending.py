"""Texts by UIDs, and sets of UIDs, in little memory where they come in ascending order, or nearly so."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from protocol.values import UidSet


class AscendingTexts:
    """Texts by UIDs that are added in ascending order: each takes its length in UTF-8, and 12 bytes."""

    def __init__(self) -> None:
        self._uids = array("I")
        self._ends = array("Q")
        self._texts = bytearray()

    def add(self, uid: int, text: str) -> None:
        """Add the text of a UID above all others."""
        self._uids.append(uid)
        self._texts += text.encode(errors="surrogateescape")
        self._ends.append(len(self._texts))

    def __len__(self) -> int:
        return len(self._uids)

    def find(self, uid: int) -> str | None:
        """Return the text of a UID."""
        at = bisect_left(self._uids, uid)
        if at == len(self._uids) or self._uids[at] != uid:
            return None
        start = self._ends[at - 1] if at else 0
        return self._texts[start : self._ends[at]].decode(errors="surrogateescape")


class GrowingUids:
    """A set of UIDs that grows, nearly always by one above all others. It takes 8 bytes for each gap."""

    def __init__(self) -> None:
        self._first, self._last = array("I"), array("I")  # UIDs of ascending, disjoint, non-adjacent ranges

    def add(self, uid: int) -> None:
        """Add a UID."""
        first, last = self._first, self._last
        at = bisect_right(first, uid)
        if at and uid <= last[at - 1]:
            return
        extends, precedes = at > 0 and last[at - 1] == uid - 1, at < len(first) and first[at] == uid + 1
        if extends and precedes:
            last[at - 1] = last.pop(at)
            first.pop(at)
        elif extends:
            last[at - 1] = uid
        elif precedes:
            first[at] = uid
        else:
            first.insert(at, uid)
            last.insert(at, uid)

    def update(self, uids: Iterable[int]) -> None:
        """Add UIDs."""
        for uid in uids:
            self.add(uid)

    def __contains__(self, uid: int) -> bool:
        at = bisect_right(self._first, uid)
        return at > 0 and uid <= self._last[at - 1]

    def uids(self) -> UidSet:
        """Return the set."""
        return UidSet(tuple(zip(self._first, self._last, strict=True)))
