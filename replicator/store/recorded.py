"""What the database says of holders in the attachment store, for a sweep of that (`attachments.sweep.Records`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from replicator.store.attachments.construction import Holding


class Recorded:
    """See `Records`. Each call sees the last commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def holders(self, content_hash: bytes) -> AbstractSet[str]:
        """See `Records`."""
        query = "SELECT holder FROM attachment WHERE hash = ? AND kept = 0"
        return {holder for (holder,) in self._connection.execute(query, (content_hash,))}

    def is_kept(self, holder: str) -> bool:
        """See `Records`."""
        query = "SELECT 1 FROM attachment WHERE holder = ? AND kept = 1"
        return self._connection.execute(query, (holder,)).fetchone() is not None

    def holdings(self, after: Holding | None, limit: int) -> Sequence[Holding]:
        """See `Records`."""
        key = (b"", "") if after is None else (after.hash, after.holder)
        query = "SELECT hash, holder, kept FROM attachment WHERE (hash, holder) > (?, ?) ORDER BY hash, holder LIMIT ?"
        rows = self._connection.execute(query, (*key, limit))
        return [Holding(part, holder, kept=bool(kept)) for part, holder, kept in rows]


def parted_texts(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Texts in parts: a number to go on after, and the hash."""
    query = "SELECT id, hash FROM content WHERE parted = 1 AND id > ? ORDER BY id LIMIT ?"
    return connection.execute(query, (after, limit)).fetchall()
