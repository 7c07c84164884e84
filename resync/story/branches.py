"""Entries that were made without knowledge of each other, and the merges that joined their branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from protocol.values import Dot
from resync.entry import Entry


class Meeting(NamedTuple):
    """The relation of two entries to each other.

    `are_apart`: neither stands on the other. `joined_by`: the first of the given entries that stands on both; None:
    there is none yet.
    """

    one: Dot
    other: Dot
    are_apart: bool
    joined_by: Entry | None


def meetings(entries: Iterable[Entry], some: Sequence[Dot]) -> list[Meeting]:
    """Return how some of the entries stand to each other, each to all others that follow it in `some`."""
    bits = {dot: 1 << number for number, dot in enumerate(some)}
    seen: dict[Dot, int] = {}  # those of `some` that an entry is or stands on, one bit each
    joined: dict[int, Entry] = {}  # by both bits
    for entry in entries:
        before = [seen.get(dot, 0) for dot in entry.predecessors]
        now = bits.get(entry.dot, 0)
        for below in before:
            now |= below
        seen[entry.dot] = now
        if now not in before:
            for pair in combinations([bit for bit in bits.values() if bit & now], 2):
                joined.setdefault(sum(pair), entry)
    found: list[Meeting] = []
    for one, other in combinations([dot for dot in some if dot in seen], 2):
        both = bits[one] | bits[other]
        are_apart = both not in {seen[one] & both, seen[other] & both}
        found.append(Meeting(one, other, are_apart, joined.get(both)))
    return found
