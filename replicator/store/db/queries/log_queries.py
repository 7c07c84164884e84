"""Queries on the log: its entries, its end, and what a context lacks of it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from protocol.values import Context, Dot
from replicator.store.bodies.body_rows import read_stored
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.transaction import Logged
from resync.entry import Entry, MailAdd

_WAITING = "SELECT origin, seq, chain FROM log WHERE applied = 0 UNION SELECT origin, seq, chain FROM waiting"


def entry_at(connection: sqlite3.Connection, dot: Dot) -> Entry | None:
    """Return one entry of the log. Raises DamagedRowError."""
    row = connection.execute("SELECT body FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    return entry_of(dot, row[0]) if row else None


def entry_of(dot: Dot, body: bytes) -> Entry:
    """Decode an entry from its row. Raises DamagedRowError."""
    try:
        return Entry.unpack(dot, body)
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise DamagedRowError(f"entry {dot.seq} of {dot.origin}") from error


def stamp_time(connection: sqlite3.Connection, dot: Dot) -> int | None:
    """Return the time of an entry's stamp, if the log has the entry."""
    row: tuple[int] | None = connection.execute("SELECT time FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    return row[0] if row else None


def log_waiting(connection: sqlite3.Connection) -> dict[Dot, bytes]:
    """Return the entries that arrived but are not applied, with their chains, even if the log has lost the entries."""
    rows = connection.execute(_WAITING)
    return {Dot(origin, seq): chain for origin, seq, chain in rows}


def log_context(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the context of the whole log."""
    return dict(connection.execute("SELECT name, seq FROM origin"))


def log_collected(connection: sqlite3.Connection) -> dict[str, int]:
    """Return, per origin, the seq up to which entries were collected from the log."""
    return dict(connection.execute("SELECT name, collected FROM origin WHERE collected > 0"))


def log_settled(connection: sqlite3.Connection) -> dict[str, int]:
    """Return, per origin, the seq up to which this node shows all entries that arrived."""
    waiting = dict(connection.execute(f"SELECT origin, MIN(seq) FROM ({_WAITING}) GROUP BY origin"))
    context = connection.execute("SELECT name, seq FROM origin")
    return {origin: min(seq, waiting.get(origin, seq + 1) - 1) for origin, seq in context}


def log_start(connection: sqlite3.Connection, context: Context) -> int | None:
    """Return the position before the first entry that `context` lacks, or None if the log begins after that entry."""
    positions = [log_end(connection) + 1]
    for origin, seq, collected in connection.execute("SELECT name, seq, collected FROM origin").fetchall():
        known = context.get(origin, 0)
        if known >= seq:
            continue
        query = "SELECT position FROM log WHERE origin = ? AND seq = ?"
        row = connection.execute(query, (origin, known + 1)).fetchone() if known >= collected else None
        if row is None:  # the entry may have been collected since the origins were read
            return None
        positions.append(row[0])
    return min(positions) - 1


def log_end(connection: sqlite3.Connection) -> int:
    """Return the position of the last entry that arrived, whether or not it is still in the log."""
    row: tuple[int] | None = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
    return row[0] if row else 0


def log_after(
    connection: sqlite3.Connection, position: int, end: int, max_entries: int, max_bytes: int
) -> list[Logged]:
    """Return entries between two positions with their bodies: at least one, if there is any, within the limits."""
    found: list[Logged] = []
    total = 0
    cursor = connection.execute(
        "SELECT position, origin, seq, body FROM log WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
        (position, end, max_entries),
    )
    for at, origin, seq, body in cursor:
        entry = entry_of(Dot(origin, seq), body)
        hashes = {change.content_hash for change in entry.changes if isinstance(change, MailAdd) and not change.copied}
        bodies = {key: stored for key in hashes if (stored := read_stored(connection, key)) is not None}
        logged = Logged(at, entry, len(body), bodies)
        total += logged.memory_bytes
        if found and total > max_bytes:
            break
        found.append(logged)
    return found


@dataclass(frozen=True, slots=True)
class Lag:
    """The part of the log that a context lacks. `oldest_ms` is the time at which the oldest such entry was numbered.

    If some of the lacking entries were collected, size and age cover the remaining ones, and are None if none remain.
    """

    entries: int = 0
    size_bytes: int | None = 0
    oldest_ms: int | None = None


def lag(connection: sqlite3.Connection, context: Context) -> Lag:
    """Return how far a node with this context is behind this node."""
    entries = size_bytes = 0
    times: list[int] = []
    for origin, seq, offset, collected in connection.execute(
        "SELECT name, seq, offset_bytes, collected FROM origin"
    ).fetchall():
        known = context.get(origin, 0)
        entries += max(0, seq - known)
        first = max(known, collected) + 1
        query = "SELECT time, offset_bytes, body FROM log WHERE origin = ? AND seq = ?"
        if first <= seq and (row := connection.execute(query, (origin, first)).fetchone()) is not None:
            time, first_offset, body = row
            times.append(time)
            size_bytes += offset - first_offset + len(body) + entry_of(Dot(origin, first), body).bodies_bytes
    return Lag(entries, size_bytes if times or not entries else None, min(times) >> 16 if times else None)


def log_counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of entries in the log, and how many of them wait."""
    total = connection.execute("SELECT COALESCE(SUM(seq - collected), 0) FROM origin").fetchone()[0]
    waiting = connection.execute("SELECT COUNT(*) FROM log WHERE applied = 0").fetchone()[0]
    return total, waiting
