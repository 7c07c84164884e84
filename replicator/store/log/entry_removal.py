"""The log's size, and removal of entries that no node of the cluster needs from here (design section 6).

Only prefixes of origins are removed, and only settled entries: an entry that waits stays, with all later entries of its
origin. The caller of `collect` makes sure that checkpoints hold the effect of the removed entries.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from protocol.values import Context
from replicator.store.db import queries
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.transaction import Transaction

COLLECT_AT_ONCE = 2000  # entries: some 10 ms of the writer
MEASURE_AT_ONCE = 20_000  # entries: some 20 ms of a reader's thread
ROW_BYTES = 100  # of an entry in the database beyond its body, with two indexes


class Size(NamedTuple):
    """The size of entries in the log, without message bodies, which stay when entries go."""

    entries: int
    size_bytes: int


def measure(connection: sqlite3.Connection, after: int, upto: int) -> tuple[Size, int | None]:
    """Return the size of a slice of the log between two positions, and its last position; None: no entries left."""
    entries, size_bytes, last = connection.execute(
        "SELECT COUNT(*), COALESCE(SUM(length(body)), 0), MAX(position) FROM (SELECT position, body FROM log"
        " WHERE position > ? AND position <= ? ORDER BY position LIMIT ?)",
        (after, upto, MEASURE_AT_ONCE),
    ).fetchone()
    return Size(entries, size_bytes + entries * ROW_BYTES), last


def oldest_ms(connection: sqlite3.Connection) -> int | None:
    """Return the time at which the log's first entry was numbered, from its stamp. Raises DamagedRowError."""
    row: tuple[object] | None = connection.execute("SELECT time FROM log ORDER BY position LIMIT 1").fetchone()
    if row is None:
        return None
    (time,) = row
    if not isinstance(time, int):
        raise DamagedRowError("an entry of the log")
    return time >> 16


def collect(tx: Transaction, upto: Context, max_entries: int = COLLECT_AT_ONCE) -> Size:
    """Delete up to `max_entries` entries within a context from the log, and none that waits.

    Return what was deleted.
    """
    gone = Size(0, 0)
    may_go = queries.log_settled(tx.connection)
    for name, origin in tx.memory.origins.items():
        begin = _begin(tx.connection, name, origin.collected)
        last = min(upto.get(name, 0), may_go.get(name, 0), begin + max_entries - gone.entries)
        if last < begin or (last == begin and not origin.lost):
            continue
        part = (name, begin, last)
        time, bodies = tx.connection.execute(
            "SELECT MAX(time), COALESCE(SUM(length(body)), 0) FROM log WHERE origin = ? AND seq > ? AND seq <= ?", part
        ).fetchone()
        if not isinstance(time, int | None):
            raise DamagedRowError("an entry of the log")
        tx.connection.execute("DELETE FROM log WHERE origin = ? AND seq > ? AND seq <= ?", part)
        if time is not None:
            tx.observe(time)
        count = last - begin
        gone = Size(gone.entries + count, gone.size_bytes + bodies + count * ROW_BYTES)
        if last >= origin.collected:
            tx.forget_entries(name, last)
    return gone


def _begin(connection: sqlite3.Connection, origin: str, collected: int) -> int:
    """Return the seq before the origin's first row: entries kept as proof lie before the log's beginning."""
    query = "SELECT MIN(seq) FROM log WHERE origin = ? AND seq <= ?"
    first: int | None = connection.execute(query, (origin, collected)).fetchone()[0]
    return collected if first is None else first - 1
