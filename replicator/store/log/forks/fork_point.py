"""The point where two branches of a history part, as the log has it: what only one of them has, and since when."""

from __future__ import annotations

import sqlite3
from heapq import heappop, heappush

from protocol.values import Context, Dot
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.entry_validation import NUMBER_MAX
from replicator.store.log.replay import Base
from resync.conflicts import Since
from resync.entry import Entry
from resync.state import ContradictionError


def check_apart(
    connection: sqlite3.Connection, chain_id: bytes, head: Dot, context: Context, base: Base | None = None
) -> Since | None:
    """Return when a branch, given by head and context, parted from ours, if the log proves that both can be merged.

    None: the log does not tell.

    Raises ContradictionError if they cannot be merged: a node has numbered on both branches without seeing its own
    entries.
    """
    chain = chains.load(connection, chain_id)
    if chain is None or chain.head is None:
        return Since()
    for begin in (None, base):
        walk = _Walk(connection, begin)
        if walk.down(chain.head, head):
            ours, theirs = walk.apart
            _check_seen(ours, context)
            _check_seen(theirs, chain.context)
            return Since(*walk.since)
    return None


class _Walk:
    """A walk down the histories of two heads, which collects the entries that only one of them has: `apart`.

    `since` has the time of the first of them, for each side.

    It goes by MODSEQ, which falls from entry to predecessor, until all that is left is common to both. Entries that the
    base has seen are skipped: they are common if both sides have reached the base itself.
    """

    _BOTH = 3

    def __init__(self, connection: sqlite3.Connection, base: Base | None) -> None:
        self.apart: tuple[list[Dot], list[Dot]] = ([], [])
        self.since = [0, 0]
        self._connection = connection
        self._base = base
        self._at_base = self._below_base = 0  # the sides that have come there, as in `_sides`
        self._sides: dict[Dot, int] = {}  # 1: ours, 2: theirs, 3: both have it
        self._entries: dict[Dot, Entry] = {}
        self._queue: list[tuple[int, Dot]] = []
        self._modseq = NUMBER_MAX  # of the last entry visited

    def down(self, ours: Dot, theirs: Dot) -> bool:
        """Walk down from both heads. Return False if some of the entries are not here."""
        if not (self._reach(ours, 1) and self._reach(theirs, 2)):
            return False
        while not self._is_done():
            if not self._queue:
                return False
            _, dot = heappop(self._queue)
            side, entry = self._sides.pop(dot), self._entries.pop(dot)
            self._modseq = entry.modseq
            if side != self._BOTH:
                self.apart[side - 1].append(dot)
                self.since[side - 1] = min(entry.time, self.since[side - 1] or entry.time)
            if not all(self._reach(before, side) for before in entry.predecessors):
                return False
        return True

    def _reach(self, dot: Dot, side: int) -> bool:
        """Queue an entry for a side. Return False if the entry is not here, or leads in a circle."""
        if self._base is not None and self._base.state.context.get(dot.origin, 0) >= dot.seq:
            if dot == self._base.head.dot:
                self._at_base |= side
            else:
                self._below_base |= side
            return True
        if dot not in self._sides:
            entry = queries.entry_at(self._connection, dot)
            if entry is None or entry.modseq >= self._modseq:
                return False
            self._entries[dot] = entry
            heappush(self._queue, (-entry.modseq, dot))
        self._sides[dot] = self._sides.get(dot, 0) | side
        return True

    def _is_done(self) -> bool:
        is_same_below = self._at_base == self._BOTH or not (self._at_base or self._below_base)
        return is_same_below and all(self._sides[dot] == self._BOTH for _, dot in self._queue)


def _check_seen(apart: list[Dot], context: Context) -> None:
    """Check that a context does not claim entries that its history lacks: a merge would take their mail for expunged.

    Raises ContradictionError.
    """
    for dot in apart:
        if context.get(dot.origin, 0) >= dot.seq:
            raise ContradictionError(f"{dot.origin} has numbered entries on two branches: only one of them has {dot}")
