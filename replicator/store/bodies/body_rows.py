"""Message bodies in the database: compressed, and named by their SHA-256.

For a large body the database has the recipe and the references to its attachments in the attachment store.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

import zstandard

from protocol.commands import Parts
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_references import holdings_in
from resync.row import Row

COMPRESSION_LEVEL = 1  # mail is small: higher levels cost more than they save
MAX_BODY_BYTES = 1 << 28  # of an unpacked body; doors accept far less
DOUBTED_MS = -(1 << 63)
"""Date of lacking bodies for which no message was found; no message has this date."""


@dataclass(frozen=True, slots=True)
class StoredBody:
    """A message body ready to be written. Preparing it is the costly step, which needs no lock.

    `packed` is what the database has of it. A large one has `parts`: its recipe, each of whose attachments one of the
    `holdings` keeps in the attachment store.
    """

    content_hash: bytes
    size_bytes: int
    packed: bytes = field(repr=False)
    parts: Parts | None = field(default=None, repr=False)
    holdings: tuple[Holding, ...] = ()

    @classmethod
    def of(cls, body: bytes) -> StoredBody:
        """Hash and compress a body."""
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        return cls(hashlib.sha256(body).digest(), len(body), compressor.compress(body))

    @classmethod
    def of_packed(
        cls, content_hash: bytes, packed: bytes, max_bytes: int, decompressor: zstandard.ZstdDecompressor
    ) -> StoredBody | None:
        """Return a small body as another node has it packed, to be stored as it came.

        None: it does not unpack to a body of this hash, of 1 to `max_bytes` octets, or no node packs a body so badly.
        """
        try:
            size_bytes = zstandard.frame_content_size(packed)  # so much memory is taken at once
            if not 0 < size_bytes <= max_bytes or len(packed) > most_packed_bytes(size_bytes):
                return None
            body = decompressor.decompress(packed, allow_extra_data=False)
        except zstandard.ZstdError:
            return None
        return cls(content_hash, size_bytes, packed) if hashlib.sha256(body).digest() == content_hash else None

    @classmethod
    def of_recipe(cls, parts: Parts, holdings: Iterable[Holding]) -> StoredBody:
        """Prepare a body whose attachments are all referenced by `holdings`."""
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
        return cls(parts.content_hash, parts.size, compressor.compress(parts.recipe), parts, tuple(holdings))

    @property
    def message(self) -> bytes | Parts:
        """The body as peers get it: its octets, unpacked anew each time, or the `Parts` of a large one."""
        if self.parts is not None:
            return self.parts
        return zstandard.ZstdDecompressor().decompress(self.packed, max_output_size=MAX_BODY_BYTES)

    @property
    def memory_bytes(self) -> int:
        """Memory that the body takes, in octets: a small one is kept packed."""
        return len(self.packed) + (0 if self.parts is None else len(self.parts.recipe))


def most_packed_bytes(size_bytes: int) -> int:
    """Return the octets that a body of this size takes at most when it is packed: more than zstd's own bound."""
    return size_bytes + size_bytes // 128 + 128


def size_of(message: bytes | Parts) -> int:
    """Return the size of a message body, in octets."""
    return len(message) if isinstance(message, bytes) else message.size


def memory_of(message: bytes | Parts) -> int:
    """Return the bytes that a message body or its recipe takes in memory."""
    return len(message) if isinstance(message, bytes) else len(message.recipe)


def write_body(connection: sqlite3.Connection, stored: StoredBody) -> None:
    """Store a body. A stored one stays: its references may be the only ones that lead to its attachments.

    A damaged body in the database is replaced, and so is one with attachments by one without, which cannot have lost
    any.
    """
    if _insert(connection, stored):
        _record(connection, stored)
    elif not _may_stay(connection, stored):
        replace_body(connection, stored)


def replace_body(connection: sqlite3.Connection, stored: StoredBody) -> None:
    """Store a body in place of a damaged one. A sweep releases the damaged one's attachments."""
    connection.execute("DELETE FROM attachment WHERE text = ?", (stored.content_hash,))
    connection.execute("DELETE FROM content WHERE hash = ?", (stored.content_hash,))  # REPLACE would run no trigger
    _insert(connection, stored)
    _record(connection, stored)


def read_body(connection: sqlite3.Connection, content_hash: bytes) -> bytes | Parts | None:
    """Return a body, or None if it is missing or does not match its hash.

    The attachments of a large body are not checked.
    """
    found = _read(connection, content_hash)
    return found[1] if found is not None else None


def read_stored(connection: sqlite3.Connection, content_hash: bytes) -> StoredBody | None:
    """Return a body as it is stored, without its holdings, or None as `read_body` does."""
    found = _read(connection, content_hash)
    if found is None:
        return None
    packed, message = found
    return StoredBody(content_hash, size_of(message), packed, message if isinstance(message, Parts) else None)


def _read(connection: sqlite3.Connection, content_hash: bytes) -> tuple[bytes, bytes | Parts] | None:
    row = connection.execute("SELECT body, size_bytes, parted FROM content WHERE hash = ?", (content_hash,)).fetchone()
    if row is None:
        return None
    packed, size_bytes, is_large = row
    unpacked = _unpacked(packed)
    if unpacked is not None and is_large:
        return packed, Parts(content_hash, size_bytes, unpacked)
    if unpacked is None or hashlib.sha256(unpacked).digest() != content_hash:
        return None
    return packed, unpacked


def read_small_bodies(connection: sqlite3.Connection, hashes: Iterable[bytes], max_bytes: int) -> dict[bytes, bytes]:
    """Return bodies without attachments by their hash, as many in this order as fit into so many octets.

    Bodies that are large, missing or damaged are left out.
    """
    found: dict[bytes, bytes] = {}
    query = "SELECT body FROM content WHERE hash = ? AND NOT parted AND size_bytes <= ?"
    for content_hash in dict.fromkeys(hashes):
        row = connection.execute(query, (content_hash, max_bytes)).fetchone()
        body = None if row is None else _unpacked(row[0])
        if body is not None and hashlib.sha256(body).digest() == content_hash:
            found[content_hash] = body
            max_bytes -= len(body)
    return found


def read_packed(
    connection: sqlite3.Connection, hashes: Iterable[bytes], *, max_packed_bytes: int, max_body_bytes: int
) -> list[bytes | None]:
    """Return small bodies as they are packed, as many of the first as fit into so many octets, but one at least.

    None stands for a body that is missing, large, or of more than `max_body_bytes`. Nothing is unpacked or checked.
    """
    found: list[bytes | None] = []
    query = "SELECT body FROM content WHERE hash = ? AND NOT parted AND size_bytes <= ?"
    for content_hash in hashes:
        row = connection.execute(query, (content_hash, max_body_bytes)).fetchone()
        packed = row[0] if row is not None and isinstance(row[0], bytes) else None
        if packed is not None and len(packed) > most_packed_bytes(max_body_bytes):
            packed = None
        max_packed_bytes -= len(packed or b"")
        if found and max_packed_bytes < 0:
            break
        found.append(packed)
    return found


def _unpacked(packed: object) -> bytes | None:
    """Return what the database has of a body, unpacked; None if it is damaged."""
    if not isinstance(packed, bytes):
        return None
    try:
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_BODY_BYTES)
    except zstandard.ZstdError:
        return None


def holdings_of(connection: sqlite3.Connection, content_hash: bytes) -> list[Holding]:
    """Return the references to a body's attachments."""
    query = "SELECT hash, holder, kept FROM attachment WHERE text = ?"
    return list(holdings_in(connection.execute(query, (content_hash,))))


def keepers_of(connection: sqlite3.Connection, attachment_hash: bytes) -> list[Holding]:
    """Return the recorded references to an attachment that is not stored under its hash: see `Holding.kept`."""
    query = "SELECT hash, holder, kept FROM attachment WHERE hash = ? AND kept = 1"
    return list(holdings_in(connection.execute(query, (attachment_hash,))))


def unrecorded(connection: sqlite3.Connection, holdings: Iterable[Holding]) -> list[Holding]:
    """Return those references that are recorded for no body of this node."""
    query = "SELECT 1 FROM attachment WHERE hash = ? AND holder = ?"
    return [held for held in holdings if connection.execute(query, (held.hash, held.holder)).fetchone() is None]


def _insert(connection: sqlite3.Connection, stored: StoredBody) -> bool:
    """Insert the body's row, unless there is one. Return True if a row was written."""
    is_large = stored.parts is not None
    row = (stored.content_hash, stored.size_bytes, is_large, stored.packed)
    query = "INSERT OR IGNORE INTO content (hash, size_bytes, parted, body) VALUES (?, ?, ?, ?)"
    return connection.execute(query, row).rowcount == 1


def _may_stay(connection: sqlite3.Connection, stored: StoredBody) -> bool:
    """Return True if the stored body is as good as this one. Mostly the bytes are equal, and nothing is unpacked."""
    is_large = stored.parts is not None
    query = "SELECT (size_bytes, parted, body) = (?, ?, ?) FROM content WHERE hash = ?"
    row = (stored.size_bytes, is_large, stored.packed, stored.content_hash)
    if connection.execute(query, row).fetchone() != (1,):
        kept = read_body(connection, stored.content_hash)
        if kept is None or size_of(kept) != stored.size_bytes or (isinstance(kept, Parts) and not is_large):
            return False
        if isinstance(kept, bytes):
            return True
    return not stored.holdings or {held.hash for held in stored.holdings} <= {
        held.hash for held in holdings_of(connection, stored.content_hash)
    }


def _record(connection: sqlite3.Connection, stored: StoredBody) -> None:
    if not stored.holdings:  # as of most
        return
    connection.executemany(
        "INSERT OR REPLACE INTO attachment (text, hash, holder, kept) VALUES (?, ?, ?, ?)",
        [(stored.content_hash, held.hash, held.holder, held.kept) for held in stored.holdings],
    )


def note_lacking(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Note the missing bodies of messages that arrived without them, to be fetched."""
    connection.executemany(
        "INSERT OR IGNORE INTO lacking (received_ms, hash)"
        " SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM content WHERE hash = ?2)",
        ((row.received_ms, row.content_hash) for row in rows),
    )


def lacking(connection: sqlite3.Connection, before: tuple[int, bytes] | None, count: int) -> list[tuple[int, bytes]]:
    """Return bodies to be fetched, as message dates and hashes, the newest first."""
    where, values = ("", ()) if before is None else (" WHERE (received_ms, hash) < (?, ?)", before)
    query = f"SELECT received_ms, hash FROM lacking{where} ORDER BY received_ms DESC, hash DESC LIMIT ?"
    return connection.execute(query, (*values, count)).fetchall()


def still_lacking(connection: sqlite3.Connection, noted: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return those of the noted bodies that are still to be fetched, in their order."""
    query = "SELECT 1 FROM lacking WHERE received_ms = ? AND hash = ?"
    return [item for item in noted if connection.execute(query, item).fetchone() is not None]


def lacking_count(connection: sqlite3.Connection) -> int:
    """Return the number of bodies to be fetched; one that several messages share may count more than once."""
    count: int = connection.execute("SELECT COUNT(*) FROM lacking").fetchone()[0]
    return count


def lacking_in_vain(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
    """Return the noted bodies that no message has any more. Reads all messages, so it runs beside the writer.

    By the time of the writer's turn, a message with such a body may have arrived. So only bodies doubted before this
    look may be forgotten.
    """
    query = "SELECT received_ms, hash FROM lacking WHERE hash NOT IN (SELECT content_hash FROM by_uid)"
    return connection.execute(query).fetchall()


def doubt_lacking(connection: sqlite3.Connection, found: Iterable[tuple[int, bytes]]) -> None:
    """Move these bodies to `DOUBTED_MS`: a message that arrives with one later notes it anew, under its own date."""
    connection.executemany(
        "UPDATE OR REPLACE lacking SET received_ms = ? WHERE received_ms = ? AND hash = ?",
        ((DOUBTED_MS, *item) for item in found),
    )


def is_lacking(connection: sqlite3.Connection, content_hash: bytes) -> bool:
    """Return True if the body is to be fetched."""
    return connection.execute("SELECT 1 FROM lacking WHERE hash = ?", (content_hash,)).fetchone() is not None


def body_count(connection: sqlite3.Connection) -> int:
    """Return the number of bodies that are here."""
    found: int = connection.execute("SELECT COUNT(*) FROM content").fetchone()[0]
    return found


def those_here(connection: sqlite3.Connection, hashes: Iterable[bytes]) -> set[bytes]:
    """Return those of the hashes of which a body is here, whole or not."""
    return {content_hash for content_hash in hashes if is_here(connection, content_hash)}


def is_here(connection: sqlite3.Connection, content_hash: bytes) -> bool:
    """Return True if a body of that hash is here, whole or not."""
    return connection.execute("SELECT 1 FROM content WHERE hash = ?", (content_hash,)).fetchone() is not None


def forget_lacking(connection: sqlite3.Connection, found: Iterable[tuple[int, bytes]]) -> None:
    """Forget lacking bodies that have arrived, or that no message has any more."""
    connection.executemany("DELETE FROM lacking WHERE received_ms = ? AND hash = ?", found)
