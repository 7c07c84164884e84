"""Rows of each table, a batch at a time, in the inventory's order, within the caller's transaction.

A batch is what SQLite returns, and may hold anything if the database is damaged. A text that is not UTF-8 ends the fast
path through a table: reading resumes after the last good batch, with wrong bytes decoded as surrogates, which
`screening` then finds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replicator.store.db import chain as chains
from replicator.store.db.damage import is_damage

BATCH_ROWS = 1 << 13
HEADS_AT_ONCE = 1 << 8  # each may have a context of a thousand origins, some 200 bytes each

ANNOTATIONS_AT_ONCE = 1 << 8  # each may have a value of 64 KiB

Values: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RowSource:
    """A query. Its first columns are the `key` that orders its rows. `most`: maximum rows of a batch."""

    select: str
    key: tuple[str, ...]
    most: int = BATCH_ROWS


# A claim nearly always equals the placement: NULL stands for that, and costs nothing to fetch.
SOURCES = {
    "heads": RowSource(chains.SELECT, ("id",), HEADS_AT_ONCE),
    "messages": RowSource(
        "SELECT mailbox, uid, origin, seq, change, guid,"
        " CASE WHEN claim_origin IS origin THEN NULL ELSE ifnull(claim_origin, 0) END,"
        " CASE WHEN claim_seq IS seq THEN NULL ELSE ifnull(claim_seq, '') END,"
        " modseq, flags, received_ms, size_bytes, content_hash, also, saved_ms FROM by_uid",
        ("mailbox", "uid"),
    ),
    "guids": RowSource("SELECT guid, mailbox, uid, origin, seq, change FROM by_guid", ("guid", "mailbox")),
    "folders": RowSource("SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder", ("mailbox_id",)),
    "subscriptions": RowSource("SELECT user, name, subscribed, time, sid FROM subscription", ("user", "name")),
    "annotations": RowSource(
        "SELECT user, mailbox_id, name, value, time, sid FROM annotation",
        ("user", "mailbox_id", "name"),
        ANNOTATIONS_AT_ONCE,
    ),
}


def batches(connection: sqlite3.Connection, source: RowSource) -> Iterator[Sequence[Values]]:
    """Yield all rows in batches. Raises sqlite3.Error if a page of the database is damaged."""
    last: Values | None = None
    connection.text_factory = str
    try:
        while True:
            try:
                yield from _from(connection, source, last)
            except _TextError as error:
                last, connection.text_factory = error.last, _tolerant
            else:
                return
    finally:
        connection.text_factory = str


class _TextError(Exception):
    """A text that is not UTF-8, after the row with the key `last`."""

    def __init__(self, last: Values | None) -> None:
        super().__init__()
        self.last = last


def _tolerant(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def _from(connection: sqlite3.Connection, source: RowSource, last: Values | None) -> Iterator[Sequence[Values]]:
    names = ", ".join(source.key)
    where = f" WHERE ({names}) > ({', '.join('?' * len(source.key))})" if last else ""
    cursor = connection.execute(f"{source.select}{where} ORDER BY {names}", last or ())
    while True:
        try:
            rows = cursor.fetchmany(min(BATCH_ROWS, source.most))
        except sqlite3.OperationalError as error:
            cursor.close()
            if connection.text_factory is _tolerant or not _is_text_error(error):
                raise
            raise _TextError(last) from error
        if not rows:
            return
        last = rows[-1][: len(source.key)]
        yield rows


def _is_text_error(error: sqlite3.OperationalError) -> bool:
    return is_damage(error) and getattr(error, "sqlite_errorcode", None) is None


def count(connection: sqlite3.Connection) -> int:
    """Return the approximate number of all rows, from the chains' own counters: counting the rows takes seconds."""
    messages: float = connection.execute("SELECT TOTAL(messages) FROM chain").fetchone()[0]
    others = connection.execute(
        "SELECT (SELECT COUNT(*) FROM chain) + (SELECT COUNT(*) FROM folder) + (SELECT COUNT(*) FROM subscription)"
        " + (SELECT COUNT(*) FROM annotation)"
    ).fetchone()[0]
    return 2 * int(min(messages, 1e12)) + int(others)
