"""Which of the doomed texts are named by something: all that can name one, a slice at a time.

Each look reads the slice after a key, and gives the key to go on after, None at the end, and the texts that it has
found. What comes into a slice that was read has spared its text itself.
"""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import NamedTuple, Protocol, TypeAlias

from protocol.values import Dot
from replicator.store.bodies.deletion_candidates import texts_of
from replicator.store.db import queries

Key: TypeAlias = tuple[object, object]

FIRST: Key = (-math.inf, -math.inf)  # before all else in SQLite's order
SLICE_ROWS = 10_000  # some 10 ms
SLICE_ENTRIES, SLICE_BYTES = 256, 4 << 20  # of which each may name many texts


class Slice(NamedTuple):
    """A part of a look."""

    after: Key | None
    found: set[bytes]


class Look(Protocol):
    """One of the functions below."""

    def __call__(self, connection: sqlite3.Connection, after: Key) -> Slice:
        """Read a slice. Raises DamagedRowError where it is not known what is named."""
        ...


def by_messages(connection: sqlite3.Connection, after: Key) -> Slice:
    """Texts of messages."""
    return _by_rows(connection, "by_uid", "mailbox, uid", after)


def by_expunged(connection: sqlite3.Connection, after: Key) -> Slice:
    """Texts of what is kept of expunged mail."""
    return _by_rows(connection, "expunged", "mailbox, guid", after)


def by_waiting(connection: sqlite3.Connection, after: Key) -> Slice:
    """Texts that entries name which wait. Raises DamagedRowError."""
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
            found |= texts_of(queries.entry_of(Dot(origin, seq), body))
            last, size_bytes = (chain, position), size_bytes + len(body)
            if size_bytes > SLICE_BYTES:
                break
    return Slice(last, found)


def _by_rows(connection: sqlite3.Connection, table: str, key: str, after: Key) -> Slice:
    end = connection.execute(
        f"SELECT {key} FROM {table} WHERE ({key}) > (?, ?) ORDER BY {key} LIMIT 1 OFFSET ?", (*after, SLICE_ROWS - 1)
    ).fetchone()
    upto, values = ("", after) if end is None else (f" AND ({key}) <= (?, ?)", (*after, *end))
    query = (
        f"SELECT DISTINCT d.hash FROM {table} n CROSS JOIN doomed d ON d.hash = n.content_hash"
        f" WHERE ({key}) > (?, ?){upto}"
    )
    return Slice(end, {content_hash for (content_hash,) in connection.execute(query, values)})


LOOKS: tuple[Look, ...] = (by_messages, by_expunged, by_waiting)
"""All that can name a text."""
