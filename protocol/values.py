"""Values that travel between nodes and are stored in their logs.

They are plain immutable values that can only be compared, hashed and printed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

UID_MAX = 2**32 - 1
"""RFC 3501 section 2.3.1.1: a UID is a non-zero unsigned 32-bit number."""

Context = Mapping[str, int]
"""Origin -> highest seq seen of it (design section 2)."""


class Dot(NamedTuple):
    """The name of one log entry: the `seq`-th entry, from 1 without gaps, of one run of one node.

    `origin` is `SID.boot`; the SID holds no full stop.
    """

    origin: str
    seq: int

    @property
    def sid(self) -> str:
        """SID of the node that numbered the entry."""
        return sid_of(self.origin)

    @property
    def name(self) -> str:
        """The entry's name in logs: `ORIGIN:SEQ`."""
        return f"{self.origin}:{self.seq}"


def context_dots(context: Context) -> tuple[Dot, ...]:
    """Return a context as it travels, in the order of its origins."""
    return tuple(Dot(origin, seq) for origin, seq in sorted(context.items()))


def context_of(dots: Iterable[Dot]) -> dict[str, int]:
    """Return a context that came as `context_dots`."""
    return {dot.origin: dot.seq for dot in dots}


def covers(context: Context, other: Context) -> bool:
    """Return True if `context` includes everything that `other` includes.

    On Spark: `spark.comparison.contexts.covers`.
    """
    return all(context.get(origin, 0) >= seq for origin, seq in other.items())


def sid_of(origin: str) -> str:
    """Return the SID of an origin `SID.boot`."""
    return origin.rpartition(".")[0]


def is_older(origin: str, other: str) -> bool:
    """Return True if `origin` started before `other`, another run of its node, by the clocks of their machines."""
    return _by_start(origin) < _by_start(other)


def _by_start(origin: str) -> tuple[int, str]:
    """Return a sort key: hexadecimal numbers by value, any other text in an order that all nodes share."""
    boot = origin.partition(".")[2]
    return len(boot), boot


class Stamp(NamedTuple):
    """A reading of the hybrid logical clock: totally ordered, consistent with causality (design section 2).

    `time` holds 48 bits of milliseconds since the epoch above 16 bits of counter.
    """

    time: int
    sid: str

    @property
    def ms(self) -> int:
        """Milliseconds since the epoch."""
        return self.time >> 16


@dataclass(frozen=True, slots=True)
class UidSet:
    """A set of UIDs as ascending, disjoint, non-adjacent inclusive ranges; prints as RFC 3501 `sequence-set`."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, uids: Iterable[int]) -> UidSet:
        """Return the set of these UIDs, which may be in any order and repeat."""
        return cls.ascending(sorted(set(uids)))

    @classmethod
    def ascending(cls, uids: Iterable[int]) -> UidSet:
        """Return the set of these UIDs, which ascend: they need not be in memory."""
        ranges: list[tuple[int, int]] = []
        ordered = iter(uids)
        low = high = next(ordered, None)
        if low is None or high is None:
            return cls()
        for uid in ordered:  # ten times as fast as `of_ranges`: mailboxes have tens of thousands of messages
            if uid != high + 1:
                ranges.append((low, high))
                low = uid
            high = uid
        return cls((*ranges, (low, high)))

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> UidSet:
        """Return the union of inclusive ranges `(low, high)`, which may be in any order and overlap."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return cls(tuple(merged))

    def union(self, other: UidSet) -> UidSet:
        """Return the UIDs of both sets."""
        return UidSet.of_ranges((*self.ranges, *other.ranges))

    def without(self, other: UidSet) -> UidSet:
        """Return the UIDs of this set that the other one lacks."""
        left: list[tuple[int, int]] = []
        gone, at = other.ranges, 0
        for start, high in self.ranges:
            low = start
            while at < len(gone) and gone[at][0] <= high:
                if low < gone[at][0]:
                    left.append((low, gone[at][0] - 1))
                low = max(low, gone[at][1] + 1)
                if gone[at][1] > high:
                    break
                at += 1
            if low <= high:
                left.append((low, high))
        return UidSet(tuple(left))

    def up_to(self, highest: int) -> UidSet:
        """Return the UIDs of this set that are not above this one."""
        return UidSet(tuple((low, min(high, highest)) for low, high in self.ranges if low <= highest))

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, uid: int) -> bool:
        position = bisect_right(self.ranges, (uid, UID_MAX + 1)) - 1
        return position >= 0 and uid <= self.ranges[position][1]

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}:{high}" for low, high in self.ranges)
