"""The file of search texts: its name, its table, its version, and the errors of whoever works with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import zstandard

from replicator.errors import DatabaseFailedError, DiskFullError, MailError
from replicator.store.db.schema import is_full

FILE = "search.db"  # beside the database

HASH_BYTES = 32  # before each text, in its row
TEXT_MAX_BYTES = 2 << 20  # of a search text that is kept: doors make less

CACHE_KIB = 8 * 1024  # per connection

TABLE = """
CREATE TABLE search_text (
    id     INTEGER PRIMARY KEY,                     -- keeps texts in the order in which they were made
    hash   BLOB NOT NULL UNIQUE,                    -- SHA-256 of the body
    packed BLOB NOT NULL                            -- zstd of the hash and the text; empty: there is none
);
"""

_FORM = 1_000_000  # times a number that rises with each change of the tables here, plus the version of the texts
_WAITING = {
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT),
    sqlite3.SQLITE_PROTOCOL,
}
"""Errors of SQLite's that a new file would meet, too."""

Identity: TypeAlias = tuple[int, int]
"""The device and inode of a file."""


class SearchFileDamagedError(MailError):
    """The file is damaged, or not what it should be: it is to be deleted and begun anew."""


def form_of(version: int) -> int:
    """Return the number by which a file with search texts of this version is known."""
    return _FORM + version


def identity_of(path: Path) -> Identity | None:
    """Return the identity of the file; None if there is none. Raises OSError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def files_of(path: Path) -> list[Path]:
    """Return the file and those that SQLite keeps beside it, in which order they may be deleted."""
    return [path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "")]


@contextmanager
def translated(path: Path) -> Iterator[None]:
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
