"""Entries that were made without knowledge of each other, and the merges that joined their branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from protocol.values import Dot
from resync.entry import Entry


class Meeting(NamedTuple):
    """How two entries stand to each other.

    `are_apart`: neither stands on the other. `joined_by`: the first of the given entries that stands on both; None:
    there is none yet.
    """

    are_apart: bool
    joined_by: Entry | None


def meeting(entries: Iterable[Entry], one: Dot, other: Dot) -> Meeting | None:
    """Return how two of the entries stand to each other; None if one of them is not given."""
    seen: dict[Dot, frozenset[Dot]] = {}  # of the two, those that an entry is or stands on
    pair = {one, other}
    are_apart, joined_by = True, None
    for entry in entries:
        below = frozenset().union(*(seen.get(dot, frozenset()) for dot in entry.predecessors))
        seen[entry.dot] = below | (pair & {entry.dot})
        if entry.dot in pair and below:
            are_apart = False
        if len(seen[entry.dot]) == len(pair) and joined_by is None:
            joined_by = entry
    return Meeting(are_apart, joined_by) if pair <= seen.keys() else None
