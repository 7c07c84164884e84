"""Texts that no message may have any more, until that is certain and they are removed (design section 6).

Nothing leads from a text to its messages, so all rows that name texts are read, beside the writer
(`gc.body_references`).
What is kept of expunged mail is forgotten first, and its texts are doomed. Then each text is spared that a row of
`by_uid` or `expunged` names, or an entry that waits. What is doomed still is removed.

No text that a message shows, or may come to show, is ever removed, whatever comes meanwhile. A row that is there when
texts are removed has come after its text was doomed, or was there before and has stayed under its key. In the first
case it has spared the text as it came, by a trigger of its table; so has an entry that came and waits. In the second
case the look, which begins when all that is doomed is on disk, has met it. An entry that waits no longer has left rows,
which have come. One task does all this, so nothing is doomed while it looks; after a crash it looks again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from replicator.store.attachments.construction import Holding
from replicator.store.bodies.body_rows import holdings_of
from resync.entry import Entry, MailAdd, Merge


def doom_expired(connection: sqlite3.Connection, before_ms: int, limit: int) -> int:
    """Forget mail that was expunged before a time, the oldest first, and doom its texts; how many messages that was."""
    query = "SELECT mailbox, guid, content_hash FROM expunged WHERE expunged_ms < ? ORDER BY expunged_ms LIMIT ?"
    found = connection.execute(query, (before_ms, limit)).fetchall()
    connection.executemany("DELETE FROM expunged WHERE mailbox = ? AND guid = ?", [row[:2] for row in found])
    connection.executemany("INSERT OR IGNORE INTO doomed (hash) VALUES (?)", [row[2:] for row in found])
    return len(found)


def is_any_expired(connection: sqlite3.Connection, before_ms: int) -> bool:
    """Whether there is anything to do."""
    query = "SELECT EXISTS (SELECT 1 FROM doomed) OR EXISTS (SELECT 1 FROM expunged WHERE expunged_ms < ?)"
    return bool(connection.execute(query, (before_ms,)).fetchone()[0])


def spare(connection: sqlite3.Connection, hashes: Iterable[bytes]) -> None:
    """These texts are named."""
    connection.executemany("DELETE FROM doomed WHERE hash = ?", ((content_hash,) for content_hash in hashes))


def spare_texts_of(connection: sqlite3.Connection, entry: Entry) -> None:
    """An entry has come that waits: what it names is to be here when it is applied."""
    if connection.execute("SELECT 1 FROM doomed LIMIT 1").fetchone() is not None:
        spare(connection, texts_of(entry))


def texts_of(entry: Entry) -> set[bytes]:
    """Hashes of the texts that an entry names."""
    found: set[bytes] = set()
    for change in entry.changes:
        if isinstance(change, MailAdd):
            found.add(change.content_hash)
        elif isinstance(change, Merge):
            found |= {row.content_hash for row in change.rows}
    return found


class Removed(NamedTuple):
    """How many texts there are less now, and what held their parts: to be let go once this is on disk."""

    texts: int
    holdings: list[Holding]


def remove(connection: sqlite3.Connection, texts: int, size_bytes: int) -> Removed:
    """Remove doomed texts within these limits, but at least one. 0: none is doomed any more.

    They are not fetched any more either: one that came with its entry may still be noted as lacking.
    """
    query = "SELECT d.hash, COALESCE(length(c.body), 0) FROM doomed d LEFT JOIN content c ON c.hash = d.hash LIMIT ?"
    hashes: list[bytes] = []
    for content_hash, length in connection.execute(query, (texts,)).fetchall():
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
