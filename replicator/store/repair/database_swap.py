"""Replacement of a damaged database: the new one's files, until it takes over the old one's name.

The new database lies beside the old one, which stays untouched until the new one is complete. Meanwhile the node does
not run, so a power failure at any of the steps below does no harm.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from replicator.errors import DataError

_LOG, _INDEX, _LOCK = "-wal", "-shm", ".lock"
"""Suffixes of the files that SQLite and `schema.exclusive` keep beside a database."""


def replacement_of(path: Path) -> Path:
    """Return the path of the new database while it is being built."""
    return path.with_name(f"{path.name}.rebuild")


def check_none(path: Path) -> None:
    """Check that the database is not being replaced, before the node uses it. Raises DataError if it is."""
    replacement = replacement_of(path)
    if replacement.exists():
        raise DataError(
            f"{path}: a rebuild of this database was started and has not finished; run `replicator rebuild"
            f" --from-peers` again, or remove {replacement.name}* to keep the old database"
        )


def give_up(path: Path) -> bool:
    """Remove the new database, which is closed, if it is empty. Return True if there is none now. Raises OSError."""
    replacement = replacement_of(path)
    if replacement.exists() and not _is_empty(replacement):
        return False
    for suffix in (_LOG, _INDEX, "", _LOCK):  # the log first: no other database may take it for its own
        _beside(replacement, suffix).unlink(missing_ok=True)
    return True


def take_place(path: Path, date: str) -> Path | None:
    """Set the old database aside, if there is one, and give the new one, which is closed, its name.

    Returns the old database's new path. Raises OSError.
    """
    replacement = replacement_of(path)
    aside = path.with_name(f"{path.name}.{date}.damaged") if path.exists() else None
    if aside is not None:
        _beside(path, _INDEX).unlink(missing_ok=True)
        _move(_beside(path, _LOG), _beside(aside, _LOG))
        _move(path, aside)
    _beside(path, _LOG).unlink(missing_ok=True)  # SQLite would take it for the new database's log
    _beside(replacement, _INDEX).unlink(missing_ok=True)
    _move(_beside(replacement, _LOG), _beside(path, _LOG))
    _move(replacement, path)
    _beside(replacement, _LOCK).unlink(missing_ok=True)
    return aside


def _is_empty(replacement: Path) -> bool:
    """Return True if it has neither entries nor heads; False if unreadable, for the next rebuild to report."""
    try:
        with closing(sqlite3.connect(replacement)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                return True
            tables = ("origin", "chain", "content")
            return not any(connection.execute(f"SELECT 1 FROM {table}").fetchone() for table in tables)
    except sqlite3.Error:
        return False


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _move(source: Path, destination: Path) -> None:
    """Move a file durably, if it exists."""
    if not source.exists():
        return
    source.rename(destination)
    directory = os.open(destination.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
