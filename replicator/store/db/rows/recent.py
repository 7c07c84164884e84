r"""The `\Recent` state of messages (RFC 3501 section 2.3.2): kept by each node for itself, never replicated."""

from __future__ import annotations

import sqlite3


def claim(connection: sqlite3.Connection, mailbox_id: bytes, uidnext: int) -> int:
    """Return the first UID that no session at this node has claimed, and claim all UIDs below `uidnext`."""
    first = _first(connection, mailbox_id)
    if uidnext > first:  # sessions that open a mailbox at the same time claim in any order
        connection.execute("INSERT OR REPLACE INTO recent (mailbox, uidnext) VALUES (?, ?)", (mailbox_id, uidnext))
    return first


def count(connection: sqlite3.Connection, mailbox_id: bytes) -> int:
    """Return the number of messages that no session has claimed."""
    unclaimed: int = connection.execute(
        "SELECT COUNT(*) FROM by_uid WHERE mailbox = ? AND uid >= ?", (mailbox_id, _first(connection, mailbox_id))
    ).fetchone()[0]
    return unclaimed


def _first(connection: sqlite3.Connection, mailbox_id: bytes) -> int:
    row = connection.execute("SELECT uidnext FROM recent WHERE mailbox = ?", (mailbox_id,)).fetchone()
    return row[0] if row else 1
