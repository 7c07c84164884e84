"""Reader of a damaged database: log entries and bodies, row by row, skipping unreadable ones.

The database is opened read-only, twice: with its write-ahead log, and without it in case that is the damaged part. For
one thread at a time.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from protocol.commands import Parts
from protocol.values import Dot
from replicator.errors import DataError
from replicator.runtime.files.file_modes import create_private
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.body_rows import keepers_of, memory_of, read_body
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.rows.message_rows import ROW_COLUMNS, DamagedRowError, row_from
from resync.entry import Entry, MailAdd
from resync.row import Row

SLICE_ROWS = 1000  # some 10 ms of a thread
SLICE_BYTES = 16 << 20  # of bodies
UNREADABLE_MAX = 1_000_000  # consecutive positions, some 10 s; after that the rest of the log is given up

_MAGIC = b"SQLite format 3\0"  # https://sqlite.org/fileformat2.html section 1.3, like what follows
_HEADER_BYTES = 100
_PAGE_BYTES = {1 if size == 1 << 16 else size for size in (1 << power for power in range(9, 17))}
_FRACTIONS = bytes((64, 32, 32))  # payload fractions, which are constant

_ROWS = "SELECT position, origin, seq, time, chain, body FROM log WHERE position BETWEEN ? AND ? ORDER BY position"
_INDEX = "log INDEXED BY sqlite_autoindex_log_1"  # this index has every position too


@dataclass(slots=True)
class ReadableSlice:
    """A slice of a log: entries not known elsewhere, in order of arrival, with the bodies that came with them.

    `rows` counts rows read and rows that were unreadable.
    """

    entries: list[tuple[Entry, list[bytes | Parts]]] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """True if the slice has reached its limits."""
        return self.rows >= SLICE_ROWS or self.size_bytes >= SLICE_BYTES


def legible(path: Path) -> Path:
    """Return the file to open: the database or, if only the SQLite magic is lost, a copy with the magic restored.

    `discard` removes the copy. Raises DataError if there is no room for it.
    """
    discard(path)
    if not _lacks_magic_only(path):
        return path
    copy = _copy_of(path)
    try:
        create_private(copy)
        shutil.copyfile(path, copy)
        with copy.open("r+b") as file:
            file.write(_MAGIC)
        wal = _wal_of(path)
        if wal.exists():
            create_private(_wal_of(copy))
            shutil.copyfile(wal, _wal_of(copy))
    except OSError as error:
        discard(path)
        raise DataError(
            f"{copy}: {error.strerror}; {path.name} must be copied before it can be read; make room"
        ) from error
    return copy


def discard(path: Path) -> None:
    """Remove the copy made by `legible`, if there is one."""
    copy = _copy_of(path)
    for file in (_wal_of(copy), copy.with_name(f"{copy.name}-shm"), copy):
        file.unlink(missing_ok=True)


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.rebuild-copy")


def _wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _lacks_magic_only(path: Path) -> bool:
    """Return True if the magic is lost and the rest of the header is as SQLite writes it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or header.startswith(_MAGIC):
        return False
    is_known = int.from_bytes(header[16:18]) in _PAGE_BYTES and set(header[18:20]) <= {1, 2}
    return is_known and header[21:24] == _FRACTIONS


@contextmanager
def opened(path: Path) -> Iterator[DamagedDatabase]:
    """Open the database at the path; if the file is missing or no database, all reads return nothing."""
    ways = ("mode=ro", "immutable=1") if _wal_of(path).exists() else ("immutable=1",)
    connections = [
        sqlite3.connect(f"file:{quote(str(path.absolute()))}?{way}", uri=True, check_same_thread=False)
        for way in ways
        if path.is_file()
    ]
    try:
        yield DamagedDatabase(connections)
    finally:
        for connection in connections:
            connection.close()


class DamagedDatabase:
    """A damaged database, with ways to read it, the best one first."""

    def __init__(self, ways: list[sqlite3.Connection]) -> None:
        self._ways = ways
        self._unreadable = [0] * len(ways)

    @property
    def unreadable(self) -> int:
        """The number of log rows unreadable in the best way of reading, whether or not they are known elsewhere."""
        return min(self._unreadable, default=0)

    def context(self) -> dict[str, int] | None:
        """Return the log's context, empty if there is no file; None: unreadable."""
        return self._origins("seq") if self._ways else {}

    def collected(self) -> dict[str, int] | None:
        """Return, per origin, the seq up to which entries were collected from the log; None: unreadable."""
        return self._origins("collected")

    def body(self, content_hash: bytes) -> bytes | Parts | None:
        """Return a body, if it is here and whole; the attachments of a large one are not checked."""
        for connection in self._ways:
            with suppress(sqlite3.Error):
                body = read_body(connection, content_hash)
                if body is not None:
                    return body
        return None

    def keepers(self, attachment_hash: bytes) -> list[Holding]:
        """Return the references to an attachment that is not stored under its hash, as far as they are readable."""
        found: dict[str, Holding] = {}
        for connection in self._ways:
            with suppress(sqlite3.Error):
                found |= {holding.holder: holding for holding in keepers_of(connection, attachment_hash)}
        return list(found.values())

    def mailboxes(self) -> list[Chain]:
        """Return the heads of mailboxes, each from the best way that can read it."""
        found: dict[bytes, Chain] = {}
        for connection in self._ways:
            for row in _both_ends(connection, f"{_select_chains(connection)} WHERE uidvalidity > 0 ORDER BY id", ()):
                with suppress(sqlite3.Error, TypeError):
                    chain = chains.from_row(row)
                    found.setdefault(chain.id, chain)
        return list(found.values())

    def rows(self, chain: Chain) -> list[Row]:
        """Return the readable rows of a mailbox, by the first way of reading that yields any."""
        for connection in self._ways:
            select = f"SELECT {_row_columns(connection)} FROM by_uid WHERE mailbox = ? ORDER BY uid"
            found: dict[int, Row] = {}
            for columns in _both_ends(connection, select, (chain.id,)):
                with suppress(sqlite3.Error, TypeError):
                    row = row_from(columns)
                    found.setdefault(row.uid, row)
            if found:
                return list(found.values())
        return []

    def folder_name(self, mailbox_id: bytes) -> str | None:
        """Return the name of a mailbox's folder, if readable."""
        for connection in self._ways:
            with suppress(sqlite3.Error):
                name = queries.folder_name(connection, mailbox_id)
                if isinstance(name, str):
                    return name
        return None

    def log(self, known: Mapping[str, int]) -> Iterator[ReadableSlice]:
        """Yield the whole log in slices, once for each way.

        `known`, the context known elsewhere, may grow meanwhile.
        """
        came = self.context()
        self._unreadable = [0] * len(self._ways)
        for way, connection in enumerate(self._ways):
            part, total, read = ReadableSlice(), 0, 0
            for row in _rows(connection):
                total, read = total + 1, read + self._take(part, row, known, came)
                if part.is_full:
                    yield part
                    part = ReadableSlice()
            self._unreadable[way] = max(total, _expected(connection)) - read  # SQLite skips some rows silently
            yield part

    def _take(
        self,
        part: ReadableSlice,
        row: tuple[object, ...] | None,
        known: Mapping[str, int],
        came: Mapping[str, int] | None,
    ) -> bool:
        """Add a row to the slice. Return True if the row was readable."""
        part.rows += 1
        try:
            entry = _entry(row, known)
        except (DamagedRowError, ValueError, TypeError):
            return False
        if entry is not None and came is not None and came.get(entry.dot.origin, 0) < entry.dot.seq:
            return False  # its dot is damaged
        if entry is not None:
            bodies = self._bodies(entry)
            part.entries.append((entry, bodies))
            part.size_bytes += sum(map(memory_of, bodies))
        return True

    def _bodies(self, entry: Entry) -> list[bytes | Parts]:
        hashes = [change.content_hash for change in entry.changes if isinstance(change, MailAdd) and not change.copied]
        bodies = map(self.body, dict.fromkeys(hashes))
        return [body for body in bodies if body is not None]

    def _origins(self, column: str) -> dict[str, int] | None:
        for connection in self._ways:
            with suppress(sqlite3.Error):
                return dict(connection.execute(f"SELECT name, {column} FROM origin"))
        return None


def _row_columns(connection: sqlite3.Connection) -> str:
    """Return `ROW_COLUMNS` as this database has them: up to schemas 9 and 13, it has no `also` and no `saved_ms`."""
    found = ROW_COLUMNS
    for column in ("also", "saved_ms"):
        if not _has_column(connection, "by_uid", column):
            found = found.replace(f" {column},", " NULL,")
    return found


def _select_chains(connection: sqlite3.Connection) -> str:
    """Return `chains.SELECT` as this database has it: up to schema 11, there is no column `history`."""
    has_it = _has_column(connection, "chain", "history")
    return chains.SELECT if has_it else chains.SELECT.replace(", history", ", x''")


def _has_column(connection: sqlite3.Connection, table: str, column: str) -> bool:
    """Return True if the table has the column, or cannot be read."""
    with suppress(sqlite3.Error):
        return column in {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    return True


def _expected(connection: sqlite3.Connection) -> int:
    """Return the number of rows in the log; 0 if unreadable."""
    with suppress(sqlite3.Error, TypeError):
        return queries.log_counts(connection)[0]
    return 0


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[object, ...] | None]:
    """Yield the log's rows in order of arrival, None in place of each unreadable one."""
    at, last = (_position(connection, which) for which in ("MIN", "MAX"))
    if at is None or last is None:
        return
    failed = 0
    while at <= last and failed < UNREADABLE_MAX:
        try:
            with closing(connection.execute(_ROWS, (at, last))) as cursor:
                for row in cursor:
                    yield row
                    at, failed = row[0] + 1, 0
        except sqlite3.Error:
            yield None
            at, failed = at + 1, failed + 1
        else:
            return


def _both_ends(connection: sqlite3.Connection, query: str, values: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    """Yield a query's rows up to the first unreadable page, from either end."""
    for direction in ("ASC", "DESC"):
        try:
            with closing(connection.execute(f"{query} {direction}", values)) as cursor:
                yield from cursor
        except sqlite3.Error:
            continue
        return


def _position(connection: sqlite3.Connection, which: str) -> int | None:
    """Return the first or last position, from the table or its index."""
    for source in ("log", _INDEX):
        with suppress(sqlite3.Error):
            found: int | None = connection.execute(f"SELECT {which}(position) FROM {source}").fetchone()[0]
            return found
    return None


def _entry(row: tuple[object, ...] | None, known: Mapping[str, int]) -> Entry | None:
    """Decode an entry; None: it is known. Raises DamagedRowError, ValueError or TypeError if it is damaged."""
    if row is None:
        raise ValueError
    _, origin, seq, time, chain, body = row
    if not (isinstance(origin, str) and isinstance(seq, int) and isinstance(body, bytes)):
        raise TypeError
    if seq <= known.get(origin, 0):
        return None
    entry = queries.entry_of(Dot(origin, seq), body)
    if (entry.time, entry.mailbox_id) != (time, chain) or not entry.is_packed_as(body):
        raise ValueError
    return entry
