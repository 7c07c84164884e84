"""Gaps in the log: entries that arrived and were not collected, but cannot be read from the log (design section 7).

Their rows were deleted behind the node's back, or are unreadable. Their effect is shown nevertheless, but they cannot
be sent to peers, nor can the later entries of their origin; so the log is made to begin after them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from protocol.values import Dot
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError, is_damage
from replicator.store.db.transaction import Logged, Origin, Transaction

T = TypeVar("T")

SLICE_ENTRIES, SLICE_BYTES = 256, 4 << 20  # of one read, entry by entry

_LOST_WAITING = (
    "SELECT 1 FROM waiting w WHERE w.origin = ? AND w.seq <= ?"
    " AND NOT EXISTS (SELECT 1 FROM log l WHERE l.origin = w.origin AND l.seq = w.seq)"
)


class LogGap(NamedTuple):
    """A run of lost entries of one origin."""

    origin: str
    first: int
    last: int


def look_for_gap(connection: sqlite3.Connection, origin: str, after: int) -> tuple[LogGap | None, int]:
    """Return the first gap after an entry, as far as it lies within a slice, and the seq up to which was searched."""
    row = connection.execute("SELECT seq, collected FROM origin WHERE name = ?", (origin,)).fetchone()
    end, collected = row or (0, 0)
    begin = max(after, collected)
    until = max(begin, min(end, begin + SLICE_ENTRIES))
    first = next((seq for seq in range(begin + 1, until + 1) if not _is_there(connection, Dot(origin, seq))), None)
    if first is None:
        return None, until
    last = first
    while last < until and not _is_there(connection, Dot(origin, last + 1)):
        last += 1
    return LogGap(origin, first, last), last


def begin_after_gap(tx: Transaction, gap: LogGap) -> str | None:
    """Let the log of its origin begin after a gap, if it still is one. Return why that cannot be done, or None.

    Peers that lack the entries learn their effect from what this node shows, so this node must show all entries up to
    the gap's end.
    """
    origin = tx.memory.origins.get(gap.origin, Origin())
    if gap.first <= origin.collected or _is_there(tx.connection, Dot(gap.origin, gap.first)):
        return None
    if tx.connection.execute(_LOST_WAITING, (gap.origin, gap.last)).fetchone():
        return (
            "the lost entries were waiting, so this node does not show their changes; `replicator resync` takes"
            " these over from a node that shows them"
        )
    if queries.log_settled(tx.connection).get(gap.origin, 0) < gap.last:
        return (
            "entries of that origin wait for entries that are not here, or are on a branch that this node does not show"
        )
    before: int = tx.connection.execute(
        "SELECT COUNT(*) FROM log WHERE origin = ? AND seq > ? AND seq < ?",
        (gap.origin, origin.collected, gap.first),
    ).fetchone()[0]
    tx.lose_entries(gap.origin, gap.last, origin.lost + gap.last - origin.collected - before)
    return None


def log_piecewise(connection: sqlite3.Connection, position: int, end: int) -> tuple[list[Logged], int]:
    """Return what `queries.log_after` can read in spite of damage, and the position up to which it was read."""
    found: list[Logged] = []
    at, total = position, 0
    while at < min(end, position + SLICE_ENTRIES) and total < SLICE_BYTES:
        at += 1
        entry = _logged(connection, at)
        if entry is not None:
            found.append(entry)
            total += entry.size_bytes
    return found, at


def _logged(connection: sqlite3.Connection, position: int) -> Logged | None:
    """Return the entry at a position, if there is one and it is readable; without bodies if they are unreadable."""
    whole = _unless_damaged(lambda: queries.log_after(connection, position - 1, position, 1, 0))
    if whole is not None:
        return next(iter(whole), None)
    query = "SELECT origin, seq FROM log WHERE position = ?"
    row = _unless_damaged(lambda: connection.execute(query, (position,)).fetchone())
    entry = _unless_damaged(lambda: queries.entry_at(connection, Dot(*row))) if row else None
    return Logged(position, entry, len(entry.pack()), {}) if entry else None


def _is_there(connection: sqlite3.Connection, dot: Dot) -> bool:
    return _unless_damaged(lambda: queries.entry_at(connection, dot)) is not None


def _unless_damaged(read: Callable[[], T]) -> T | None:
    """Run a read; return None if it meets damage. Raises sqlite3.Error for errors that may pass."""
    try:
        return read()
    except DatabaseDamagedError:
        return None
    except sqlite3.Error as error:
        if is_damage(error):
            return None
        raise
