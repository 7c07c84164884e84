"""Lists of the bodies in the database, for tasks that make something of each.

Ids of bodies ascend in the order of their arrival. The highest may leave, and a new body get its id.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from protocol.commands import Parts
from replicator.store.bodies.body_rows import read_body


class ListedBody(NamedTuple):
    """A body of the database, by its hash. `message` is None if the body is damaged."""

    content_hash: bytes
    message: bytes | Parts | None


def last_id(connection: sqlite3.Connection) -> int:
    """Return the highest id of a body, 0 if there is none."""
    found: int = connection.execute("SELECT COALESCE(MAX(id), 0) FROM content").fetchone()[0]
    return found


def ids_after(connection: sqlite3.Connection, body_id: int, count: int) -> list[int]:
    """Return the ids above this one, ascending."""
    rows = connection.execute("SELECT id FROM content WHERE id > ? ORDER BY id LIMIT ?", (body_id, count))
    return [found for (found,) in rows]


def ids_by_hash(connection: sqlite3.Connection, after: bytes, count: int) -> dict[bytes, int]:
    """Return the bodies whose hashes are above this one, in the order of the hashes. Reads an index only."""
    query = "SELECT hash, id FROM content WHERE hash > ? ORDER BY hash LIMIT ?"
    return dict(connection.execute(query, (after, count)))


def bodies_by_id(connection: sqlite3.Connection, ids: Iterable[int], size_bytes: int) -> tuple[list[ListedBody], int]:
    """Return bodies with the first of these ids, within this size but at least one; and how many ids those are."""
    found, looked_at = list[ListedBody](), 0
    for body_id in ids:
        row = connection.execute("SELECT hash, length(body) FROM content WHERE id = ?", (body_id,)).fetchone()
        if row is not None:
            content_hash, length = row
            if found and size_bytes < length:
                break
            found.append(ListedBody(content_hash, read_body(connection, content_hash)))
            size_bytes -= length
        looked_at += 1
    return found, looked_at
