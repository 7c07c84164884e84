"""Detection of database damage, and how the node reports it and lives with it (design section 11).

SQLite finds damage when it reads a damaged page. At the start the node reads all small tables whole, and of the large
ones the first and the last row: a node whose heads or contexts cannot be read does not run. Damage met later fails the
request that met it, is reported once, and makes the node unhealthy; everything else goes on.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from replicator.errors import DatabaseFailedError, DataError, UnavailableError

log = logging.getLogger(__name__)

LOG_AGAIN_MS = 60_000
REMEDY = "stop the node and run `replicator rebuild --from-peers` with its configuration"

# Tables that grow with the messages, which take minutes to read -> the sort orders of the table and of each index.
_LARGE = {
    "log": ("position", "origin, seq"),
    "by_uid": ("mailbox, uid",),
    "by_guid": ("guid, mailbox",),
    "content": ("id", "hash"),
    "outline": ("id", "version, id"),
    "expunged": ("mailbox, guid", "mailbox, received_ms, guid", "expunged_ms, size_bytes"),
    "doomed": ("hash",),
    "tally": ("id",),  # small, and counted anew if it makes no sense
}

# Conditions that no sound row meets, for tables that cannot be repaired.
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


# Finds an origin whose log goes further than its row says; steps from each origin of the log to the next by index.
_UNCOUNTED = """
WITH RECURSIVE logged (name) AS (
    SELECT MIN(origin) FROM log
    UNION ALL SELECT (SELECT MIN(origin) FROM log WHERE origin > name) FROM logged WHERE name IS NOT NULL
)
SELECT CAST(name AS BLOB) FROM logged WHERE name IS NOT NULL
    AND (SELECT MAX(seq) FROM log WHERE origin = name AND seq <= 1 << 62)
    > (SELECT COALESCE(MAX(seq), 0) FROM origin o WHERE o.name = logged.name)
"""


class DatabaseDamagedError(DatabaseFailedError, UnavailableError, DataError, sqlite3.DatabaseError):
    """A failure to read data because a part of the database is damaged.

    Inside the store it counts as an SQLite error; a node that meets it at its start does not run.
    """


class WrongCountError(sqlite3.DatabaseError):
    """A conflict in the log: it already has an entry under the name that a new entry is to get."""


class Damage:
    """Damage that SQLite has found since the node's start. Safe to read and report from any thread."""

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        self._path = path
        self._clock_ms = clock_ms
        self.found: str | None = None  # the first finding, in SQLite's words
        self._logged = ("", -math.inf)  # the last failure without damage, and when it was logged

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Raise DatabaseFailedError for an error of SQLite's in the block: DatabaseDamagedError if it means damage."""
        try:
            yield
        except DatabaseFailedError:
            raise
        except sqlite3.Error as error:
            raise self.translated(error) from error

    def translated(self, error: sqlite3.Error) -> DatabaseFailedError:
        """Return the error to raise above `store/` in place of one of SQLite's.

        Log it, but not again within a minute.
        """
        if is_damage(error):
            return self.note(error)
        (text, logged_ms), now_ms = self._logged, self._clock_ms()
        if str(error) != text or abs(now_ms - logged_ms) >= LOG_AGAIN_MS:
            self._logged = (str(error), now_ms)
            log.error("%s failed: %s", self._path, error, exc_info=error)
        return DatabaseFailedError(f"this node's database failed ({error}); try again")

    def note(self, error: Exception) -> DatabaseDamagedError:
        """Return the error to raise in place of `error`. The first finding is logged for the operator."""
        if self.found is None:
            self.found = str(error)
            log.error(
                "%s is damaged: %s; the node goes on serving what it can still read; %s", self._path, error, REMEDY
            )
        return DatabaseDamagedError("a part of this node's database is damaged; its operator must rebuild it")


def is_damage(error: Exception) -> bool:
    """Return True if the error means damage: a malformed file, no database, undecodable text, or WrongCountError."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    is_no_text = isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")
    is_broken = isinstance(error, sqlite3.Error) and code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
    return is_broken or is_no_text or isinstance(error, WrongCountError)


def check_file(path: Path) -> None:
    """Check the file before it is opened. Raises DatabaseDamagedError if it is empty and its write-ahead log is not.

    SQLite would take the file for a new database, and drop the log.
    """
    wal = path.with_name(f"{path.name}-wal")
    if path.is_file() and not path.stat().st_size and wal.is_file() and wal.stat().st_size:
        raise DatabaseDamagedError(f"{path}: the database is damaged: the file is empty, but {wal.name} is not")


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Check the tables of an open database.

    Raises DatabaseDamagedError, or sqlite3.DatabaseError if SQLite cannot go on.
    """
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
                found = "a row has invalid values"
            if found != "ok":
                raise DatabaseDamagedError(f"{path}: the database is damaged: table {name}: {found}")
    if (uncounted := connection.execute(_UNCOUNTED).fetchone()) is not None:
        name = str(uncounted[0], errors="replace")
        raise DatabaseDamagedError(
            f"{path}: the database is damaged: the log has entries of {name} that table origin does not count"
        )


def _senseless(connection: sqlite3.Connection, table: str) -> str:
    """Return a query for rows with a value of another type than its column's: SQLite lets columns hold anything."""
    wrong = ["FALSE", *_NEVER.get(table, ())]  # tables added by other programs may have no types
    for _, column, kind, is_needed, _, is_key in connection.execute(f"PRAGMA table_info({table})"):
        types = f"'{kind.lower()}'" if is_needed or is_key else f"'{kind.lower()}', 'null'"
        if kind:
            wrong.append(f"typeof({column}) NOT IN ({types})")
    return f"SELECT 1 FROM {table} WHERE {' OR '.join(wrong)} LIMIT 1"
