"""Sequences ascending by UID: they are searched as they are, since a table of their items would take more memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from protocol.values import UID_MAX, UidSet


class HasUid(Protocol):
    """Anything about a mail with a UID."""

    @property
    def uid(self) -> int:
        """The UID."""
        ...


T = TypeVar("T", bound=HasUid)


def find(items: Sequence[T], uid: int) -> T | None:
    """Return the item with this UID."""
    at = first_above(items, uid) - 1
    return items[at] if at >= 0 and items[at].uid == uid else None


def by_uid(items: Sequence[T], uid: int) -> T:
    """Return the item with this UID, which is there. Raises KeyError."""
    item = find(items, uid)
    if item is None:
        raise KeyError(uid)
    return item


def first_above(items: Sequence[HasUid], uid: int) -> int:
    """Return the position of the first item above this UID."""
    return bisect_right(items, uid, key=attrgetter("uid"))


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
    """A set of UIDs that grows, nearly always by one above all others. It takes memory for its gaps."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, uid: int) -> None:
        """Add a UID."""
        ranges, first, last = self._ranges, uid, uid
        at = end = bisect_right(ranges, (uid, UID_MAX))
        if at and ranges[at - 1][1] >= uid - 1:
            at -= 1
            first, last = ranges[at][0], max(ranges[at][1], uid)
        if end < len(ranges) and ranges[end][0] == uid + 1:
            last = ranges[end][1]
            end += 1
        ranges[at:end] = [(first, last)]

    def __contains__(self, uid: int) -> bool:
        at = bisect_right(self._ranges, (uid, UID_MAX))
        return at > 0 and uid <= self._ranges[at - 1][1]

    def uids(self) -> UidSet:
        """Return the set."""
        return UidSet(tuple(self._ranges))
