"""A database that is built in the place of a damaged one: its files, until it takes that one's name.

It lies beside the old one, which nothing touches before the new one is whole. While it is there the node does not run,
so it does not matter at which of the steps below the power goes.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from replicator.errors import DataError

_LOG, _INDEX, _LOCK = "-wal", "-shm", ".lock"
"""What SQLite and `schema.exclusive` keep beside a database."""


def replacement_of(path: Path) -> Path:
    """Where the new one lies while it is being built."""
    return path.with_name(f"{path.name}.rebuild")


def check_none(path: Path) -> None:
    """Before the node uses its database. Raises DataError if that is being replaced."""
    replacement = replacement_of(path)
    if replacement.exists():
        raise DataError(
            f"{path}: a rebuild of this database was begun and has not ended; run `replicator rebuild --from-peers`"
            f" again, or take away {replacement.name}* to keep the old one"
        )


def give_up(path: Path) -> bool:
    """Remove the new one, which is closed, if nothing has come into it; whether there is none now. Raises OSError."""
    replacement = replacement_of(path)
    if replacement.exists() and not _is_empty(replacement):
        return False
    for suffix in (_LOG, _INDEX, "", _LOCK):  # what would be taken for another database's log goes first
        _beside(replacement, suffix).unlink(missing_ok=True)
    return True


def take_place(path: Path, date: str) -> Path | None:
    """Set the old database aside, if there is one, and give the new one, which is closed, its name.

    Returns where the old one lies now. Raises OSError.
    """
    replacement = replacement_of(path)
    aside = path.with_name(f"{path.name}.{date}.damaged") if path.exists() else None
    if aside is not None:
        _beside(path, _INDEX).unlink(missing_ok=True)
        _move(_beside(path, _LOG), _beside(aside, _LOG))
        _move(path, aside)
    _beside(path, _LOG).unlink(missing_ok=True)  # SQLite would take it for the new one's
    _beside(replacement, _INDEX).unlink(missing_ok=True)
    _move(_beside(replacement, _LOG), _beside(path, _LOG))
    _move(replacement, path)
    _beside(replacement, _LOCK).unlink(missing_ok=True)
    return aside


def _is_empty(replacement: Path) -> bool:
    """Whether it has neither entries nor heads. One that cannot be read is for the next rebuild to complain of."""
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
    """So that it stays moved. What is not there stays where it is."""
    if not source.exists():
        return
    source.rename(destination)
    directory = os.open(destination.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
