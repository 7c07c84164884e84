"""A database that is damaged: how that is found, told, and lived with (design section 11).

SQLite finds damage where it meets it, in reading a page. At the start all small tables are read whole, and of the large
ones the first and the last row: a node whose heads or contexts cannot be read does not run. What is met later fails
whoever asked for it, is told once, and makes the node unhealthy; the rest goes on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replicator.errors import DataError, UnavailableError

log = logging.getLogger(__name__)

REMEDY = "end the node and run `replicator rebuild --from-peers` with its configuration"

# Those that grow with the messages: reading them takes minutes. What orders them: the table itself, and each index.
_LARGE = {
    "log": ("position", "origin, seq"),
    "by_uid": ("mailbox, uid",),
    "by_guid": ("guid, mailbox",),
    "content": ("id", "hash"),
    "expunged": ("mailbox, guid", "mailbox, received_ms, guid", "expunged_ms, size_bytes"),
    "doomed": ("hash",),
}

# What no row has, where nothing could mend it.
_NEVER = {
    "origin": (
        "name NOT LIKE '_%._%'",
        "seq NOT BETWEEN 0 AND 1 << 62",
        "collected NOT BETWEEN 0 AND seq",
        "lost NOT BETWEEN 0 AND collected",
        "offset_bytes NOT BETWEEN 0 AND 1 << 62",
    ),
    "sqlite_sequence": ("typeof(name) <> 'text'", "typeof(seq) <> 'integer'"),  # SQLite's own: its columns have no type
}


# An origin whose entries in the log go further than its row says. From each origin of the log to the next one by index.
_UNCOUNTED = """
WITH RECURSIVE logged (name) AS (
    SELECT MIN(origin) FROM log
    UNION ALL SELECT (SELECT MIN(origin) FROM log WHERE origin > name) FROM logged WHERE name IS NOT NULL
)
SELECT CAST(name AS BLOB) FROM logged WHERE name IS NOT NULL
    AND (SELECT MAX(seq) FROM log WHERE origin = name AND seq <= 1 << 62)
    > (SELECT COALESCE(MAX(seq), 0) FROM origin o WHERE o.name = logged.name)
"""


class DatabaseDamagedError(UnavailableError, DataError, sqlite3.DatabaseError):
    """What was asked for cannot be had, because a part of the database is damaged.

    Doors tell it their clients; whoever has to do with the database lives with it as with any other failure of it; and
    a node that meets it at its start does not run.
    """


class WrongCountError(sqlite3.DatabaseError):
    """The log has an entry already under the name that one was to come under."""


class Damage:
    """What SQLite has found since the node's start. Any thread may ask, and tell."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: str | None = None  # the first, in SQLite's words

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Raises DatabaseDamagedError where SQLite finds damage in the block."""
        try:
            yield
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            raise self.note(error) from error

    def note(self, error: Exception) -> DatabaseDamagedError:
        """What is to be raised in the error's place. The first is told to the operator."""
        if self.found is None:
            self.found = str(error)
            log.error("%s is damaged: %s; what it still gives is served; %s", self._path, error, REMEDY)
        return DatabaseDamagedError("a part of this node's database is damaged; its operator must rebuild it")


def is_damage(error: Exception) -> bool:
    """Whether SQLite says that what it reads is no database, or one that cannot be, or the log that it is none."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    is_no_text = isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")
    is_broken = isinstance(error, sqlite3.Error) and code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
    return is_broken or is_no_text or isinstance(error, WrongCountError)


def check_file(path: Path) -> None:
    """Before the database is opened. Raises DatabaseDamagedError: SQLite would take it for new, and drop its log."""
    wal = path.with_name(f"{path.name}-wal")
    if path.is_file() and not path.stat().st_size and wal.is_file() and wal.stat().st_size:
        raise DatabaseDamagedError(f"{path}: the database is damaged: the file is empty, and {wal.name} is not")


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Once it is open. Raises DatabaseDamagedError or, where SQLite cannot go on, sqlite3.DatabaseError."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in tables:
        if name in _LARGE:
            for order in _LARGE[name]:
                for direction in ("ASC", "DESC"):
                    keys = ", ".join(f"{key} {direction}" for key in order.split(", "))
                    connection.execute(f"SELECT {order} FROM {name} ORDER BY {keys} LIMIT 1").fetchall()
        else:
            found = connection.execute(f"PRAGMA quick_check({name})").fetchone()[0]
            if found == "ok" and connection.execute(_senseless(connection, name)).fetchone():
                found = "a row makes no sense"
            if found != "ok":
                raise DatabaseDamagedError(f"{path}: the database is damaged: table {name}: {found}")
    if (uncounted := connection.execute(_UNCOUNTED).fetchone()) is not None:
        name = str(uncounted[0], errors="replace")
        raise DatabaseDamagedError(
            f"{path}: the database is damaged: the log has entries of {name} that table origin does not count"
        )


def _senseless(connection: sqlite3.Connection, table: str) -> str:
    """A query for rows with a value of another type than its column's: SQLite lets columns hold anything."""
    wrong = ["FALSE", *_NEVER.get(table, ())]  # tables that others have added may have no types
    for _, column, kind, is_needed, _, is_key in connection.execute(f"PRAGMA table_info({table})"):
        types = f"'{kind.lower()}'" if is_needed or is_key else f"'{kind.lower()}', 'null'"
        if kind:
            wrong.append(f"typeof({column}) NOT IN ({types})")
    return f"SELECT 1 FROM {table} WHERE {' OR '.join(wrong)} LIMIT 1"
