"""Search texts of message bodies, in a database file of their own (design section 6).

All of it is derived data: the file may be deleted at any time, and is begun anew when it is missing, damaged, or of
another version. A row belongs to a hash, so the search texts of another node's bodies do no harm. Each row is checked
against its hash when it is read, so damage is found and never believed. An empty row says that a body has no search
text. To all below the door, search texts are octets; what makes them counts their versions.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import zstandard

from replicator.errors import DatabaseFailedError, DiskFullError, MailError
from replicator.mail.mailstore import SearchTextSlice
from replicator.runtime.disk_room import LookAt, shortage
from replicator.runtime.file_modes import create_private
from replicator.store.bodies.body_rows import COMPRESSION_LEVEL
from replicator.store.db.schema import PAGE_BYTES, is_full, limit_wal

SLICE_BYTES = 1 << 20
"""Search texts in memory at once, plus one more."""

TEXT_MAX_BYTES = 2 << 20  # of a search text that is kept: doors make less

_HASH_BYTES = 32
_FORM = 1_000_000  # times a number that rises with each change of the tables here, plus the version of the texts
_CACHE_KIB = 8 * 1024  # per connection
_WAITING = {
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT),
}
"""Errors of SQLite's that a new file would meet, too."""

_TABLE = """
CREATE TABLE search_text (
    id     INTEGER PRIMARY KEY,                     -- keeps texts in the order in which they were made
    hash   BLOB NOT NULL UNIQUE,                    -- SHA-256 of the body
    packed BLOB NOT NULL                            -- zstd of the hash and the text; empty: there is none
);
"""

OpenFile = Callable[[Path], sqlite3.Connection]


class SearchFileDamagedError(MailError):
    """The file is damaged, or not what it should be: it is to be deleted and begun anew."""


class SearchTextFile:
    """The open file. It blocks. One thread at a time may read (`texts`), and one may do everything else."""

    def __init__(self, path: Path, version: int, open_file: OpenFile, look_at: LookAt = os.statvfs) -> None:
        """Open the file for search texts of this version; create it if there is none.

        Raises SearchFileDamagedError if it is to be begun anew, DatabaseFailedError, DiskFullError.
        """
        self._path = path
        self._look_at = look_at
        with _translated(path):
            create_private(path)  # SQLite gives the files beside it the same mode
            self._writer = open_file(path)
            try:
                _prepare(self._writer, path, _FORM + version)
                self._reader = open_file(path)
                self._reader.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                self._identity = _identity(path)
            except BaseException:
                self._writer.close()
                raise

    def close(self) -> None:
        """Close the file. Nobody may use it any more."""
        self._reader.close()
        self._writer.close()

    def texts(self, hashes: Collection[bytes]) -> SearchTextSlice:
        """Return the search texts of the first of these bodies: of so many that they take `SLICE_BYTES` or a bit more.

        Raises SearchFileDamagedError, DatabaseFailedError.
        """
        # A CROSS JOIN goes through the values in their order.
        values = ", ".join(f"({number}, ?)" for number in range(len(hashes)))
        query = (
            f"WITH wanted (number, hash) AS (VALUES {values}) SELECT w.number, w.hash, t.packed"
            " FROM wanted w CROSS JOIN search_text t ON t.hash = w.hash"
        )
        found, left = dict[bytes, bytes](), SLICE_BYTES
        unpack = partial(zstandard.ZstdDecompressor().decompress, max_output_size=_HASH_BYTES + TEXT_MAX_BYTES)
        with _translated(self._path), closing(self._reader.execute(query, [*hashes])) as rows:
            for number, content_hash, packed in rows:
                if packed == b"":
                    continue
                unpacked = unpack(packed) if isinstance(packed, bytes) else b""
                if unpacked[:_HASH_BYTES] != content_hash:
                    raise SearchFileDamagedError(f"{self._path}: a row has the text of another body")
                found[content_hash] = unpacked[_HASH_BYTES:]
                left -= len(unpacked)
                if left <= 0:
                    return SearchTextSlice(found, number + 1)
        return SearchTextSlice(found, len(hashes))

    def write(self, made: Mapping[bytes, bytes]) -> None:
        """Write the search texts of these bodies; an empty one, or one that is too large, leaves an empty row.

        Raises SearchFileDamagedError, also if the file was deleted beneath; DatabaseFailedError; DiskFullError, also if
        too little room would be left.
        """
        compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress
        rows = [(key, compress(key + text) if 0 < len(text) <= TEXT_MAX_BYTES else b"") for key, text in made.items()]
        with self._transaction():
            self._check_in_place()
            if (short := shortage(self._path.parent, self._look_at)) is not None:
                raise DiskFullError(f"{self._path.parent} has {short}, and search texts leave {short.reserve} for mail")
            self._writer.executemany("INSERT OR REPLACE INTO search_text (hash, packed) VALUES (?, ?)", rows)

    def hashes(self, after: bytes, upto: bytes | None) -> set[bytes]:
        """Return the hashes that have a row: those above `after` and, unless it is None, not above `upto`.

        Raises as `write`, but for DiskFullError.
        """
        where, values = ("hash > ?", (after,)) if upto is None else ("hash > ? AND hash <= ?", (after, upto))
        with _translated(self._path):
            self._check_in_place()
            rows = self._writer.execute(f"SELECT hash FROM search_text WHERE {where} ORDER BY hash", values)
            return {content_hash for (content_hash,) in rows}

    def remove(self, hashes: Collection[bytes]) -> None:
        """Remove rows. Raises SearchFileDamagedError, DatabaseFailedError, DiskFullError."""
        with self._transaction():
            self._writer.executemany("DELETE FROM search_text WHERE hash = ?", [(one,) for one in hashes])

    def size_bytes(self) -> int:
        """Return the size on disk."""
        return sum(file.stat().st_size for file in _files(self._path) if file.exists())

    def _check_in_place(self) -> None:
        """Raise SearchFileDamagedError if another file, or none, has the path: SQLite goes on with a deleted one."""
        if _identity(self._path) != self._identity:
            raise SearchFileDamagedError(f"{self._path}: deleted or replaced while it was open")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _translated(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


def remove_file(path: Path) -> None:
    """Delete the file, which is closed, and those beside it. Raises DatabaseFailedError."""
    with _translated(path):
        for file in _files(path):
            file.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _files(path: Path) -> list[Path]:
    """Return the file and those that SQLite keeps beside it, in which order they may be deleted."""
    return [path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "")]


def _prepare(connection: sqlite3.Connection, path: Path, form: int) -> None:
    """Set up a connection, and the table in a file without anything. Raises SearchFileDamagedError for another form."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.executescript(f"BEGIN; {_TABLE} PRAGMA user_version = {form}; COMMIT;")
    elif found != form:
        raise SearchFileDamagedError(f"{path}: of another version")
    connection.execute("PRAGMA journal_mode = WAL")
    # An fsync for each checkpoint of the write-ahead log, and none for a commit: what a power failure takes is missed
    # at the next start. With OFF, it could leave half of a page.
    connection.execute("PRAGMA synchronous = NORMAL")
    limit_wal(connection)
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise the errors that callers know in place of those of SQLite, zstd and the file system."""
    try:
        yield
    except (zstandard.ZstdError, UnicodeDecodeError) as error:  # SQLite quotes a damaged schema in its error
        raise SearchFileDamagedError(f"{path}: {error}") from error
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        if is_full(error):
            raise DiskFullError(f"{path}: the disk is full") from error
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITING:
            raise DatabaseFailedError(f"{path}: {error}") from error
        raise SearchFileDamagedError(f"{path}: {error}") from error
    except OSError as error:
        raise DatabaseFailedError(f"{path}: {error.strerror}") from error
