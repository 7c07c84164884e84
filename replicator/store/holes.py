"""Holes in the log: entries that came and were not collected, and that the log does not give (design section 7).

Their rows were deleted behind the node's back, or cannot be read. What they did is shown nevertheless. But no peer can
be sent them, nor what came after them of their origin; so the log is made to begin after them.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from protocol.values import Dot
from replicator.store import reading
from replicator.store.damage import DatabaseDamagedError, is_damage
from replicator.store.transaction import Logged, Transaction

SLICE_ENTRIES, SLICE_BYTES = 256, 4 << 20  # of one read, each entry by itself


class Hole(NamedTuple):
    """Entries of an origin that are lost, one after the other."""

    origin: str
    first: int
    last: int


def look_for_hole(connection: sqlite3.Connection, origin: str, after: int) -> tuple[Hole | None, int]:
    """The first hole after an entry, within a slice, and up to where was looked."""
    row = connection.execute("SELECT seq, collected FROM origin WHERE name = ?", (origin,)).fetchone()
    end, collected = row or (0, 0)
    begin = max(after, collected)
    until = max(begin, min(end, begin + SLICE_ENTRIES))
    for seq in range(begin + 1, until + 1):
        if not _is_there(connection, Dot(origin, seq)):
            last = seq
            while last < end and not _is_there(connection, Dot(origin, last + 1)):
                last += 1
            return Hole(origin, seq, last), last
    return None, until if until < end else max(after, end)


def begin_after_hole(tx: Transaction, hole: Hole) -> str | None:
    """Let the log of its origin begin after a hole, if it still is one. Otherwise: why that cannot be.

    Whoever lacks the entries learns what they did from what this node shows. So all up to there must be shown.
    """
    origin = tx.memory.origins[hole.origin]
    if hole.first <= origin.collected or _is_there(tx.connection, Dot(hole.origin, hole.first)):
        return None
    if reading.log_settled(tx.connection).get(hole.origin, 0) < hole.last:
        return "entries of that origin wait for what is not here, or stand on another branch than this node"
    if tx.connection.execute(
        "SELECT 1 FROM waiting w WHERE NOT EXISTS (SELECT 1 FROM log l WHERE l.position = w.position)"
    ).fetchone():
        return "what was lost may have waited, and so is not shown here"
    before: int = tx.connection.execute(
        "SELECT COUNT(*) FROM log WHERE origin = ? AND seq > ? AND seq < ?",
        (hole.origin, origin.collected, hole.first),
    ).fetchone()[0]
    tx.lose_entries(hole.origin, hole.last, origin.lost + hole.last - origin.collected - before)
    return None


def log_piecewise(connection: sqlite3.Connection, position: int, end: int) -> tuple[list[Logged], int]:
    """As `reading.log_after` where that meets damage: what can be read, and up to which position."""
    found: list[Logged] = []
    at, total = position, 0
    while at < min(end, position + SLICE_ENTRIES) and total < SLICE_BYTES:
        at += 1
        entry = _logged(connection, at)
        if entry is not None:
            found.append(entry)
            total += entry.size_bytes
    return found, at


def _is_there(connection: sqlite3.Connection, dot: Dot) -> bool:
    try:
        row = connection.execute("SELECT position FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    except sqlite3.Error as error:
        if is_damage(error):
            return False
        raise
    return row is not None and _logged(connection, row[0]) is not None


def _logged(connection: sqlite3.Connection, position: int) -> Logged | None:
    """The entry at a position, if there is one and it can be read."""
    try:
        return next(iter(reading.log_after(connection, position - 1, position, 1, 0)), None)
    except DatabaseDamagedError:
        return None
    except sqlite3.Error as error:
        if is_damage(error):
            return None
        raise
