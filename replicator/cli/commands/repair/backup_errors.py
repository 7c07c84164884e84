"""The end of `replicator backup` and `restore` by an error, in one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from replicator.backup.errors import BackupError
from replicator.cli.target import CommandError
from replicator.errors import ConfigError, DataError


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Turn operating errors into a CommandError that says `what` failed; defects pass through."""
    try:
        yield
    except (BackupError, ConfigError, DataError) as error:
        raise CommandError(f"{what} failed: {error}") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{what} failed: {where}{error.strerror}") from error
    except sqlite3.Error as error:
        raise CommandError(f"{what} failed: the database: {error}") from error
