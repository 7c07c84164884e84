"""Scans for references to doomed bodies, over all tables that can reference one, a slice at a time.

Each scan reads the slice after a key, and returns the key to continue after (None at the end) and the referenced
bodies. A row inserted into a slice that was already read has spared its body itself.
"""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import NamedTuple, Protocol, TypeAlias

from protocol.values import Dot
from replicator.store.bodies.deletion_candidates import bodies_of
from replicator.store.db import queries

Key: TypeAlias = tuple[object, object]

FIRST: Key = (-math.inf, -math.inf)  # before every other value in SQLite's order
SLICE_ROWS = 10_000  # some 10 ms
SLICE_ENTRIES, SLICE_BYTES = 256, 4 << 20  # each entry may reference many bodies


class ReferenceSlice(NamedTuple):
    """One slice of a scan: the key to continue after, and the doomed bodies that it references."""

    after: Key | None
    found: set[bytes]


class ReferenceScan(Protocol):
    """A scan, one of the functions below."""

    def __call__(self, connection: sqlite3.Connection, after: Key) -> ReferenceSlice:
        """Read a slice. Raises DamagedRowError if a damaged row hides what it references."""
        ...


def by_messages(connection: sqlite3.Connection, after: Key) -> ReferenceSlice:
    """Scan the bodies of messages."""
    return _by_rows(connection, "by_uid", "mailbox, uid", after)


def by_expunged(connection: sqlite3.Connection, after: Key) -> ReferenceSlice:
    """Scan the bodies of expunged mail that is kept."""
    return _by_rows(connection, "expunged", "mailbox, guid", after)


def by_waiting(connection: sqlite3.Connection, after: Key) -> ReferenceSlice:
    """Scan the bodies that waiting entries reference. Raises DamagedRowError."""
    entries = connection.execute(
        "SELECT chain, position, origin, seq, body FROM log WHERE applied = 0 AND (chain, position) > (?, ?)"
        " ORDER BY chain, position LIMIT ?",
        (*after, SLICE_ENTRIES),
    )
    found: set[bytes] = set()
    last: Key | None = None
    size_bytes = 0
    with closing(entries):
        for chain, position, origin, seq, body in entries:
            found |= bodies_of(queries.entry_of(Dot(origin, seq), body))
            last, size_bytes = (chain, position), size_bytes + len(body)
            if size_bytes > SLICE_BYTES:
                break
    return ReferenceSlice(last, found)


def _by_rows(connection: sqlite3.Connection, table: str, key: str, after: Key) -> ReferenceSlice:
    end = connection.execute(
        f"SELECT {key} FROM {table} WHERE ({key}) > (?, ?) ORDER BY {key} LIMIT 1 OFFSET ?", (*after, SLICE_ROWS - 1)
    ).fetchone()
    upto, values = ("", after) if end is None else (f" AND ({key}) <= (?, ?)", (*after, *end))
    query = (
        f"SELECT DISTINCT d.hash FROM {table} n CROSS JOIN doomed d ON d.hash = n.content_hash"
        f" WHERE ({key}) > (?, ?){upto}"
    )
    return ReferenceSlice(end, {content_hash for (content_hash,) in connection.execute(query, values)})


LOOKS: tuple[ReferenceScan, ...] = (by_messages, by_expunged, by_waiting)
"""All scans that together cover every possible reference to a body."""
