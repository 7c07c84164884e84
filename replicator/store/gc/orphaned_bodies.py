"""Orphaned bodies: their message was forgotten before they arrived, or the rows that referenced them are gone.

An orphan is kept as long as expunged mail from when it is found, in the same table but under no mailbox: until then,
repair may restore lost rows that reference it. After that it is a candidate for deletion like any other, with the same
proof (see `bodies.deletion_candidates`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

BODIES_AT_ONCE = 250_000  # some 10 MB; each slice reads all messages


class OrphanSlice(NamedTuple):
    """A slice of the bodies, by hash: the hash to continue after, None at the end, and the orphans."""

    after: bytes | None
    found: list[bytes]


def unnamed(connection: sqlite3.Connection, after: bytes) -> OrphanSlice:
    """Return a slice of the bodies that no message and no kept mail references. Reads all messages: 1 s per million."""
    query = "SELECT hash FROM content WHERE hash > ? ORDER BY hash LIMIT 1 OFFSET ?"
    end = connection.execute(query, (after, BODIES_AT_ONCE - 1)).fetchone()
    upto, values = ("", (after,)) if end is None else (" AND hash <= ?", (after, *end))
    found = connection.execute(
        f"SELECT hash FROM content WHERE hash > ?{upto}"
        " EXCEPT SELECT content_hash FROM by_uid EXCEPT SELECT content_hash FROM expunged",
        values,
    )
    return OrphanSlice(None if end is None else end[0], [content_hash for (content_hash,) in found])


def keep(connection: sqlite3.Connection, hashes: Iterable[bytes], now_ms: int) -> None:
    """Keep orphans from now on, as far as they are still here. One that is referenced again by now does no harm."""
    connection.executemany(
        "INSERT OR IGNORE INTO expunged"
        " (mailbox, guid, uid, flags, received_ms, size_bytes, content_hash, expunged_ms)"
        " SELECT x'', hash, 0, '', 0, size_bytes, hash, ? FROM content WHERE hash = ?",
        ((now_ms, content_hash) for content_hash in hashes),
    )
