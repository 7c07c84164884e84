"""The database of a backup: its copy while the node runs, what the copy refers to, and its preparation for a node."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from replicator.backup.errors import BackupError
from replicator.runtime.environment import open_database
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_references import holdings_in
from replicator.store.db import schema
from replicator.store.db.damage import is_damage

_MAGIC = b"SQLite format 3\0"

STEP_BYTES = 16 << 20  # copied between two looks at the write-ahead log

Tell = Callable[[int, int], None]
"""Called with the bytes that are done and their total."""


class Owner(NamedTuple):
    """Whose a database is, and by which version of the schema it was written."""

    node: str
    cluster: str
    schema: int


def opened(path: Path) -> sqlite3.Connection:
    """Open the database of a node that may run. The caller changes nothing. Raises BackupError, sqlite3.Error."""
    if not path.is_file():
        raise BackupError(f"{path}: there is no database; has the node ever run with this `node.data`?")
    return schema.open_reader(path)


def opened_copy(path: Path) -> sqlite3.Connection:
    """Open a complete database that nobody changes, without leaving files beside it."""
    return _opened(path, "immutable=1")


def _opened(path: Path, parameters: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{parameters}", uri=True, isolation_level=None)


def owner_of(connection: sqlite3.Connection) -> Owner:
    """Return whose the database is. Raises BackupError if it is nobody's yet, sqlite3.Error."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    row = connection.execute("SELECT sid, cluster FROM identity").fetchone() if version else None
    if row is None:
        raise BackupError("the database is empty: the node has never run with it")
    return Owner(str(row[0]), str(row[1]), int(version))


def size_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the whole database, as it would be in one file."""
    (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return int(pages) * int(page_bytes)


def copy(source: Path, target: Path, log_max_bytes: int, tell: Callable[[int], None]) -> None:
    """Copy one moment of the database into an empty file, a step at a time, while the node writes.

    As long as this takes, the node cannot use the space of its write-ahead log again. Raises BackupError once the log
    has grown by `log_max_bytes`, which is looked at after each step; sqlite3.Error. `tell` is called with the number of
    bytes that are copied.
    """
    log = source.with_name(f"{source.name}-wal")
    before_bytes = _size_of(log)
    with closing(opened(source)) as found, closing(open_database(target)) as made:
        (page_bytes,) = found.execute("PRAGMA page_size").fetchone()

        def look(_status: int, remaining: int, total: int) -> None:
            tell((total - remaining) * page_bytes)
            if (grown := _size_of(log) - before_bytes) > log_max_bytes:
                raise BackupError(
                    f"{log} has grown by {grown >> 20} MiB while the database was copied, half of what was free there:"
                    " the backup gave up, so that the node has room; make room, or try when less mail comes"
                )

        made.execute("PRAGMA journal_mode = OFF")  # a copy that fails is removed
        made.execute("PRAGMA synchronous = OFF")  # whoever moves the file syncs it
        found.execute("BEGIN")  # with a transaction of our own, the copy does not begin again at each commit
        found.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        found.backup(made, pages=max(1, STEP_BYTES // page_bytes), progress=look)
        found.execute("ROLLBACK")


def attachments(connection: sqlite3.Connection) -> Iterator[tuple[bytes, list[Holding]]]:
    """Yield the hash of each attachment that the database refers to, with the references."""
    found: bytes | None = b""
    query = "SELECT MIN(hash) FROM attachment WHERE hash > ?"
    while (found := connection.execute(query, (found,)).fetchone()[0]) is not None:
        yield found, references(connection, found)


def references(connection: sqlite3.Connection, content_hash: bytes) -> list[Holding]:
    """Return the references to an attachment."""
    query = "SELECT hash, holder, kept FROM attachment WHERE hash = ?"
    return list(holdings_in(connection.execute(query, (content_hash,))))


def check(path: Path) -> None:
    """Check that a copy is sound, and of a version that this one reads. Raises BackupError, sqlite3.Error."""
    with closing(opened_copy(path)) as connection:
        _check(connection, owner_of(connection).schema)


def check_schema(version: int) -> None:
    """Raise BackupError for a database of a later version."""
    if version > schema.SCHEMA_VERSION:
        raise BackupError(
            f"the backup was made by a newer version (schema {version}, but this version reads"
            f" {schema.SCHEMA_VERSION}); install that version first"
        )


def _check(connection: sqlite3.Connection, version: int) -> None:
    check_schema(version)
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise BackupError(f"the database of the backup is damaged: {found}")


def prepare(path: Path, owner: tuple[str, str], attach: Callable[[bytes, int], list[Holding] | None]) -> None:
    """Make a copied database this node's own again, and bring it to the schema of this version.

    `attach` gets the hash of each attachment and the number of references to it, and returns new ones, or None if the
    attachment cannot be had. The node counts as new: it serves nobody, and numbers nothing, before it has what the
    cluster has numbered since. Raises BackupError, ConfigError for another node's or version's database, sqlite3.Error.
    """
    with closing(schema.open_writer(path)) as connection:
        _check(connection, owner_of(connection).schema)
        schema.claim(connection, *owner)
        connection.execute("BEGIN")
        query = "SELECT text FROM attachment WHERE hash = ? ORDER BY text"
        for content_hash, _ in attachments(connection):
            texts = connection.execute(query, (content_hash,)).fetchall()
            held = attach(content_hash, len(texts))
            for (text,), holding in zip(texts, held or (), strict=False):
                connection.execute(
                    "UPDATE attachment SET holder = ?, kept = ? WHERE text = ? AND hash = ?",
                    (holding.holder, holding.kept, text, content_hash),
                )
        connection.execute("UPDATE identity SET begun = 0")
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def fold_log(path: Path) -> None:
    """Bring what is in the write-ahead log of a node that does not run into its database, if that is sound.

    Raises BackupError if that fails although it may be sound, OSError.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:  # SQLite would take it for a new database, and drop the log
            return
    try:
        with closing(_opened(path, "mode=rw")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # and closing it removes the log
    except sqlite3.Error as error:
        if not is_damage(error):
            raise BackupError(
                f"{path}: its write-ahead log cannot be brought into it: {error}; run this again once it can, or move"
                " both files away"
            ) from error


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
