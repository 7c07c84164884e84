"""Candidates for deletion: bodies that perhaps no message has any more, until proved garbage (design section 6).

Bodies do not point to their messages, so all rows that reference bodies are read, beside the writer
(`gc.body_references`). First, expunged mail past its retention is forgotten, and its bodies are doomed. Then each
doomed body is spared that a row of `by_uid` or `expunged`, or a waiting entry, references. The bodies still doomed are
removed.

No body that a message shows or may come to show is ever removed, whatever arrives meanwhile. A row that references a
body at the time of its removal was either inserted after the body was doomed, or was there before and has kept its key.
In the first case its insertion spared the body, by a trigger of its table; an arriving entry that waits spares its
bodies likewise. In the second case the scan, which begins once all dooming is on disk, has met the row. An entry that
no longer waits has left rows, which count as inserted. One task does all this, so nothing is doomed during a scan;
after a crash the scan starts again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from replicator.store.attachments.construction import Holding
from replicator.store.bodies.body_rows import holdings_of
from resync.entry import Entry, MailAdd, Merge


def doom_expired(connection: sqlite3.Connection, before_ms: int, limit: int) -> int:
    """Forget mail expunged before a time, the oldest first, and doom its bodies. Return the number of messages."""
    query = "SELECT mailbox, guid, content_hash FROM expunged WHERE expunged_ms < ? ORDER BY expunged_ms LIMIT ?"
    found = connection.execute(query, (before_ms, limit)).fetchall()
    connection.executemany("DELETE FROM expunged WHERE mailbox = ? AND guid = ?", [row[:2] for row in found])
    connection.executemany("INSERT OR IGNORE INTO doomed (hash) VALUES (?)", [row[2:] for row in found])
    return len(found)


def is_any_expired(connection: sqlite3.Connection, before_ms: int) -> bool:
    """Return True if any body is doomed or any expunged mail is past its retention."""
    query = "SELECT EXISTS (SELECT 1 FROM doomed) OR EXISTS (SELECT 1 FROM expunged WHERE expunged_ms < ?)"
    return bool(connection.execute(query, (before_ms,)).fetchone()[0])


def count(connection: sqlite3.Connection) -> int:
    """Return the number of bodies that are doomed."""
    doomed: int = connection.execute("SELECT COUNT(*) FROM doomed").fetchone()[0]
    return doomed


def spare(connection: sqlite3.Connection, hashes: Iterable[bytes]) -> None:
    """Spare bodies that are referenced."""
    connection.executemany("DELETE FROM doomed WHERE hash = ?", ((content_hash,) for content_hash in hashes))


def spare_bodies_of(connection: sqlite3.Connection, entry: Entry) -> None:
    """Spare the bodies of a waiting entry: they must be here when it is applied."""
    if connection.execute("SELECT 1 FROM doomed LIMIT 1").fetchone() is not None:
        spare(connection, bodies_of(entry))


def bodies_of(entry: Entry) -> set[bytes]:
    """Return the hashes of the bodies that an entry references."""
    found: set[bytes] = set()
    for change in entry.changes:
        if isinstance(change, MailAdd):
            found.add(change.content_hash)
        elif isinstance(change, Merge):
            found |= {row.content_hash for row in change.rows}
    return found


class Removed(NamedTuple):
    """The number of removed bodies, and the references to their attachments, to be released after the removal."""

    bodies: int
    holdings: list[Holding]


def remove(connection: sqlite3.Connection, bodies: int, size_bytes: int) -> Removed:
    """Remove doomed bodies within these limits, but at least one. `bodies` is 0 if none is doomed any more.

    They are no longer fetched either: a body that came with its entry may still be noted as lacking.
    """
    query = "SELECT d.hash, COALESCE(length(c.body), 0) FROM doomed d LEFT JOIN content c ON c.hash = d.hash LIMIT ?"
    hashes: list[bytes] = []
    for content_hash, length in connection.execute(query, (bodies,)).fetchall():
        if hashes and size_bytes < length:
            break
        hashes.append(content_hash)
        size_bytes -= length
    holdings = [holding for content_hash in hashes for holding in holdings_of(connection, content_hash)]
    connection.executemany("DELETE FROM attachment WHERE text = ?", [(content_hash,) for content_hash in hashes])
    connection.executemany("DELETE FROM content WHERE hash = ?", [(content_hash,) for content_hash in hashes])
    connection.executemany("DELETE FROM lacking WHERE hash = ?", [(content_hash,) for content_hash in hashes])
    spare(connection, hashes)
    return Removed(len(hashes), holdings)
