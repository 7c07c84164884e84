"""The file of search texts as its one writer has it, in the core."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import zstandard

from replicator.errors import DiskFullError
from replicator.runtime.files.disk_room import LookAt, shortage
from replicator.runtime.files.file_modes import create_private
from replicator.store.bodies.body_rows import COMPRESSION_LEVEL
from replicator.store.db.schema import PAGE_BYTES, limit_wal
from replicator.store.search_texts.form import (
    CACHE_KIB,
    TABLE,
    TEXT_MAX_BYTES,
    SearchFileDamagedError,
    files_of,
    form_of,
    identity_of,
    translated,
)

OpenFile = Callable[[Path], sqlite3.Connection]


class SearchTextWriter:
    """The open file. It blocks, and one thread at a time may use it."""

    def __init__(self, path: Path, version: int, open_file: OpenFile, look_at: LookAt = os.statvfs) -> None:
        """Open the file for search texts of this version; create it if there is none.

        Raises SearchFileDamagedError if it is to be begun anew, DatabaseFailedError, DiskFullError.
        """
        self._path = path
        self._look_at = look_at
        with translated(path):
            create_private(path)  # SQLite gives the files beside it the same mode
            self._connection = open_file(path)
            try:
                _prepare(self._connection, path, form_of(version))
                self._identity = identity_of(path)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file. Nobody may use it any more."""
        self._connection.close()

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
            self._connection.executemany("INSERT OR REPLACE INTO search_text (hash, packed) VALUES (?, ?)", rows)

    def hashes(self, after: bytes, upto: bytes | None) -> set[bytes]:
        """Return the hashes that have a row: those above `after` and, unless it is None, not above `upto`.

        Raises as `write`, but for DiskFullError.
        """
        where, values = ("hash > ?", (after,)) if upto is None else ("hash > ? AND hash <= ?", (after, upto))
        with translated(self._path):
            self._check_in_place()
            rows = self._connection.execute(f"SELECT hash FROM search_text WHERE {where} ORDER BY hash", values)
            return {content_hash for (content_hash,) in rows}

    def remove(self, hashes: Collection[bytes]) -> None:
        """Remove rows. Raises SearchFileDamagedError, DatabaseFailedError, DiskFullError."""
        with self._transaction():
            self._connection.executemany("DELETE FROM search_text WHERE hash = ?", [(one,) for one in hashes])

    def size_bytes(self) -> int:
        """Return the size on disk."""
        return sum(file.stat().st_size for file in files_of(self._path) if file.exists())

    def _check_in_place(self) -> None:
        """Raise SearchFileDamagedError if another file, or none, has the path: SQLite goes on with a deleted one."""
        if identity_of(self._path) != self._identity:
            raise SearchFileDamagedError(f"{self._path}: deleted or replaced while it was open")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with translated(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def remove_file(path: Path) -> None:
    """Delete the file, which is closed, and those beside it. Raises DatabaseFailedError."""
    with translated(path):
        for file in files_of(path):
            file.unlink(missing_ok=True)


def _prepare(connection: sqlite3.Connection, path: Path, form: int) -> None:
    """Set up a connection, and the table in a file without anything. Raises SearchFileDamagedError for another form."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.executescript(f"BEGIN; {TABLE} PRAGMA user_version = {form}; COMMIT;")
    elif found != form:
        raise SearchFileDamagedError(f"{path}: of another version")
    connection.execute("PRAGMA journal_mode = WAL")
    # An fsync for each checkpoint of the write-ahead log, and none for a commit: what a power failure takes is missed
    # at the next start. With OFF, it could leave half of a page.
    connection.execute("PRAGMA synchronous = NORMAL")
    limit_wal(connection)
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("SELECT 1 FROM search_text LIMIT 1").fetchone()  # creates the files beside it that readers need
