"""Queries on the messages of mailboxes, and the views that are made of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from protocol.values import Dot, UidSet
from replicator.mail.view import MailboxView, Message
from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from replicator.store.db.queries.folder_queries import uidvalidities
from replicator.store.db.queries.mailbox_key import MailboxKey
from replicator.store.db.rows.message_rows import ROW_COLUMNS, DamagedRowError, key_from, message_of, row_from
from resync.row import Row

T = TypeVar("T")


def mailbox_rows(connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet | None = None) -> Iterator[Row]:
    """Yield a mailbox's rows by UID: all of them, or those of `uids`."""
    select = f"SELECT {ROW_COLUMNS} FROM by_uid WHERE mailbox = ?"
    if uids is None:
        yield from _each(connection, row_from, f"{select} ORDER BY uid", (mailbox_id,))
        return
    for low, high in uids.ranges:
        yield from _each(connection, row_from, f"{select} AND uid BETWEEN ? AND ?", (mailbox_id, low, high))


def fingerprints(connection: sqlite3.Connection, mailbox_id: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield GUID and stored fingerprint of each row of a mailbox. Raises DamagedRowError."""
    query = "SELECT guid, fingerprint FROM by_uid WHERE mailbox = ? ORDER BY uid"
    return _each(connection, key_from, query, (mailbox_id,))


def _each(
    connection: sqlite3.Connection,
    meaning: Callable[[tuple[Any, ...]], T],
    query: str,
    parameters: tuple[object, ...],
) -> Iterator[T]:
    """Yield the decoded rows of a query. Closes the cursor on errors too: an open one would pin an old snapshot."""
    with closing(connection.execute(query, parameters)) as cursor:
        yield from map(meaning, cursor)


def shows_whole(connection: sqlite3.Connection, key: MailboxKey, dot: Dot) -> bool:
    """Return True if this node shows the entry's effect and has the bodies of all messages that the entry added.

    A message is looked for under its first placement only: who waits for one of the others waits for the first as well.
    """
    chain = chains.load(connection, key.mailbox_id)
    query = (
        "SELECT 1 FROM by_uid WHERE mailbox = ? AND origin = ? AND seq = ?"
        " AND content_hash NOT IN (SELECT hash FROM content) LIMIT 1"
    )
    lacks = connection.execute(query, (key.mailbox_id, *dot)).fetchone()
    return chain is not None and chain.has_seen(dot) and lacks is None


def rows(connection: sqlite3.Connection, mailbox_id: bytes) -> tuple[Chain | None, list[Row]]:
    """Return a mailbox's head and rows from one snapshot."""
    connection.execute("BEGIN")
    try:
        return chains.load(connection, mailbox_id), list(mailbox_rows(connection, mailbox_id))
    finally:
        connection.execute("COMMIT")


class ChainSnapshot(NamedTuple):
    """A mailbox at one moment. `uidvalidities`: as clients see it, and its own; None if the user's tree is not here."""

    chain: Chain | None
    messages: list[Message]
    uidvalidities: tuple[int, int] | None


def messages(connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet | None = None) -> ChainSnapshot:
    """Return a mailbox's head and messages, all or those of `uids`, from one snapshot. Raises DamagedRowError."""
    shared: dict[frozenset[str], frozenset[str]] = {}  # most messages share their flag set with many others
    connection.execute("BEGIN")
    try:
        head = chains.load_known(connection, mailbox_id)
        rows = (message_of(row) for row in mailbox_rows(connection, mailbox_id, uids))
        found = [message._replace(flags=shared.setdefault(message.flags, message.flags)) for message in rows]
        return ChainSnapshot(head, found, uidvalidities(connection, mailbox_id))
    finally:
        connection.execute("COMMIT")


def view(connection: sqlite3.Connection, key: MailboxKey, uids: UidSet | None = None) -> MailboxView:
    """Return a mailbox's view, made from one snapshot; an empty one if no message was ever stored in it.

    `uids`: of these messages alone. It is made here because this runs in a reader's thread: the event loop would stand
    still meanwhile. Raises DamagedRowError.
    """
    chain, rows, known = messages(connection, key.mailbox_id, uids)
    shown, own = known or (key.uidvalidity, key.uidvalidity)
    return MailboxView.build(
        mailbox_id=key.mailbox_id,
        user=key.user,
        uidvalidity=shown,
        own=own,
        uidnext=chain.uidnext if chain else 1,
        highestmodseq=chain.highestmodseq if chain else 0,
        rows=rows,
        head=chain.head if chain else None,
    )


def uid_of_guid(connection: sqlite3.Connection, guid: bytes, mailbox_id: bytes) -> int | None:
    """Return the UID of a GUID in a mailbox."""
    row = connection.execute("SELECT uid FROM by_guid WHERE guid = ? AND mailbox = ?", (guid, mailbox_id)).fetchone()
    return row[0] if row else None


def uids_of(connection: sqlite3.Connection, mailbox_id: bytes, guids: Iterable[bytes]) -> UidSet:
    """Return the UIDs of those of these messages that a mailbox has."""
    found = (uid_of_guid(connection, guid, mailbox_id) for guid in guids)
    return UidSet.of(uid for uid in found if uid is not None)


def row_of_guid(connection: sqlite3.Connection, guid: bytes, mailbox_id: bytes) -> Row | None:
    """Return the row of a GUID in a mailbox."""
    uid = uid_of_guid(connection, guid, mailbox_id)
    return None if uid is None else next(mailbox_rows(connection, mailbox_id, UidSet.of([uid])), None)


def uids_between(connection: sqlite3.Connection, mailbox_id: bytes, low: int, high: int) -> Iterator[int]:
    """Yield the UIDs of a mailbox's messages within these bounds, ascending. Raises DamagedRowError."""
    query = "SELECT uid FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ? ORDER BY uid"
    for (uid,) in connection.execute(query, (mailbox_id, low, high)):
        if not isinstance(uid, int):
            raise DamagedRowError("a message's row")
        yield uid


def content_hash_of_guid(connection: sqlite3.Connection, guid: bytes) -> bytes | None:
    """Return the hash of a message's body, from any of its placements."""
    row = connection.execute(
        "SELECT u.content_hash FROM by_guid g JOIN by_uid u ON u.mailbox = g.mailbox AND u.uid = g.uid"
        " WHERE g.guid = ? LIMIT 1",
        (guid,),
    ).fetchone()
    return row[0] if row else None


def content_hash_of_uid(connection: sqlite3.Connection, mailbox_id: bytes, uid: int) -> bytes | None:
    """Return the hash of the body of the message that a mailbox shows under a UID."""
    row = connection.execute(
        "SELECT content_hash FROM by_uid WHERE mailbox = ? AND uid = ?", (mailbox_id, uid)
    ).fetchone()
    return row[0] if row else None
