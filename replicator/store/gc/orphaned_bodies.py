"""Texts that nothing names: they came when their message was forgotten already, or the rows that named them are gone.

From when they are found they are kept as long as expunged mail, among that, but of no mailbox: rows that were lost can
be mended for so long, and name them again. Then they are candidates for deletion as any other, with what that proves
(see `bodies.deletion_candidates`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

TEXTS_AT_ONCE = 250_000  # some 10 MB; for each so many, all messages are read


class Slice(NamedTuple):
    """A part of the texts, by their hashes: the one to go on after, None at the end, and those that nothing names."""

    after: bytes | None
    found: list[bytes]


def unnamed(connection: sqlite3.Connection, after: bytes) -> Slice:
    """What no message and nothing that is kept names. Reads all messages: a second for a million."""
    query = "SELECT hash FROM content WHERE hash > ? ORDER BY hash LIMIT 1 OFFSET ?"
    end = connection.execute(query, (after, TEXTS_AT_ONCE - 1)).fetchone()
    upto, values = ("", (after,)) if end is None else (" AND hash <= ?", (after, *end))
    found = connection.execute(
        f"SELECT hash FROM content WHERE hash > ?{upto}"
        " EXCEPT SELECT content_hash FROM by_uid EXCEPT SELECT content_hash FROM expunged",
        values,
    )
    return Slice(None if end is None else end[0], [content_hash for (content_hash,) in found])


def keep(connection: sqlite3.Connection, hashes: Iterable[bytes], now_ms: int) -> None:
    """Let these be kept from now on, as far as they are here still. What names them by now makes no difference."""
    connection.executemany(
        "INSERT OR IGNORE INTO expunged"
        " (mailbox, guid, uid, flags, received_ms, size_bytes, content_hash, expunged_ms)"
        " SELECT x'', hash, 0, '', 0, size_bytes, hash, ? FROM content WHERE hash = ?",
        ((now_ms, content_hash) for content_hash in hashes),
    )
