"""Message texts on their way to and from the database: compressed, and named by their SHA-256."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

import zstandard

from resync.row import Row

COMPRESSION_LEVEL = 1  # mail is small: higher levels cost more than they save
MAX_TEXT_BYTES = 1 << 28  # of a text when unpacked; what the doors let in is far smaller
DOUBTED_MS = -(1 << 63)
"""The date of texts that no message was seen to have: none is of that date."""


@dataclass(frozen=True, slots=True)
class StoredText:
    """A message text, ready to be written. Making one is the costly part; it needs no lock and no thread."""

    content_hash: bytes
    text: bytes = field(repr=False)
    body: bytes = field(repr=False)

    @classmethod
    def of(cls, text: bytes) -> StoredText:
        """Hash and compress."""
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        return cls(hashlib.sha256(text).digest(), text, compressor.compress(text))


def write_text(connection: sqlite3.Connection, stored: StoredText) -> None:
    """Keep a text; one that is there already is left as it is."""
    connection.execute("INSERT OR IGNORE INTO content (hash, body) VALUES (?, ?)", (stored.content_hash, stored.body))


def replace_text(connection: sqlite3.Connection, stored: StoredText) -> None:
    """Keep a text in the place of a damaged one."""
    connection.execute("INSERT OR REPLACE INTO content (hash, body) VALUES (?, ?)", (stored.content_hash, stored.body))


def read_text(connection: sqlite3.Connection, content_hash: bytes) -> bytes | None:
    """A text, or None if it is not here or no longer what its hash says."""
    row = connection.execute("SELECT body FROM content WHERE hash = ?", (content_hash,)).fetchone()
    if row is None or not isinstance(row[0], bytes):
        return None
    try:
        text = zstandard.ZstdDecompressor().decompress(row[0], max_output_size=MAX_TEXT_BYTES)
    except zstandard.ZstdError:
        return None
    return text if hashlib.sha256(text).digest() == content_hash else None


def note_lacking(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Messages came without entries, which bring texts: those that are not here are to be fetched."""
    connection.executemany(
        "INSERT OR IGNORE INTO lacking (received_ms, hash)"
        " SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM content WHERE hash = ?2)",
        ((row.received_ms, row.content_hash) for row in rows),
    )


def lacking(connection: sqlite3.Connection, before: tuple[int, bytes] | None, count: int) -> list[tuple[int, bytes]]:
    """Texts that are to be fetched, by their messages' dates and their hashes, the newest first."""
    where, values = ("", ()) if before is None else (" WHERE (received_ms, hash) < (?, ?)", before)
    query = f"SELECT received_ms, hash FROM lacking{where} ORDER BY received_ms DESC, hash DESC LIMIT ?"
    return connection.execute(query, (*values, count)).fetchall()


def still_lacking(connection: sqlite3.Connection, noted: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Those of these texts that are to be fetched, in their order."""
    query = "SELECT 1 FROM lacking WHERE received_ms = ? AND hash = ?"
    return [item for item in noted if connection.execute(query, item).fetchone() is not None]


def lacking_count(connection: sqlite3.Connection) -> int:
    """How many texts are to be fetched; one of several messages may count more than once."""
    count: int = connection.execute("SELECT COUNT(*) FROM lacking").fetchone()[0]
    return count


def lacking_in_vain(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
    """Those that no message has any more. Reads all messages, so not in the writer's turn.

    By that turn, a message may have come that has one. Only what was doubted before this look may be forgotten.
    """
    query = "SELECT received_ms, hash FROM lacking WHERE hash NOT IN (SELECT content_hash FROM by_uid)"
    return connection.execute(query).fetchall()


def doubt_lacking(connection: sqlite3.Connection, found: Iterable[tuple[int, bytes]]) -> None:
    """Put these under `DOUBTED_MS`: from here on a message that comes with one notes it anew, under its own date."""
    connection.executemany(
        "UPDATE OR REPLACE lacking SET received_ms = ? WHERE received_ms = ? AND hash = ?",
        ((DOUBTED_MS, *item) for item in found),
    )


def is_here(connection: sqlite3.Connection, content_hash: bytes) -> bool:
    """Whether there is a text of that hash, whole or not."""
    return connection.execute("SELECT 1 FROM content WHERE hash = ?", (content_hash,)).fetchone() is not None


def forget_lacking(connection: sqlite3.Connection, found: Iterable[tuple[int, bytes]]) -> None:
    """These texts are here by now, or no message has them any more."""
    connection.executemany("DELETE FROM lacking WHERE received_ms = ? AND hash = ?", found)
