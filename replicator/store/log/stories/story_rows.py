"""Queries for stories on a mailbox and its mail, besides the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from protocol.values import Dot
from replicator.store.checkpoints import catalog
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import MailboxKey
from replicator.store.gc import expunged
from resync.clock import COUNTER_BITS
from resync.folder_tree import GIVEN_UP

LISTED_MAX = 20  # entries that wait, the oldest first


class KnownFolder(NamedTuple):
    """A folder that the user has, or had. `uidvalidity` is as clients see it."""

    mailbox_id: bytes
    name: str
    uidvalidity: int
    is_deleted: bool
    own: int


def folder_named(connection: sqlite3.Connection, user: str, name: str) -> KnownFolder | None:
    """Return the folder of this name that clients see, or else the one that was deleted last."""
    seen = queries.folder(connection, user, name)
    query = (
        f"SELECT f.mailbox_id, f.name, {queries.SHOWN_UIDVALIDITY}, f.deleted, {queries.OWN_UIDVALIDITY} FROM folder f"
        " LEFT JOIN chain c ON c.id = f.mailbox_id WHERE f.user = ? AND f.name = ? AND f.sid <> ?"
        " ORDER BY f.mailbox_id = ? DESC, f.deleted, f.time DESC LIMIT 1"
    )
    row = connection.execute(query, (user, name, GIVEN_UP, b"" if seen is None else seen.mailbox_id)).fetchone()
    return None if row is None else KnownFolder(row[0], row[1], row[2], bool(row[3]), row[4])


def folder_names(connection: sqlite3.Connection, user: str) -> dict[bytes, str]:
    """Return the names of all folders that the user has, or had, by mailbox id."""
    return dict(connection.execute("SELECT mailbox_id, name FROM folder WHERE user = ?", (user,)))


class WaitingEntry(NamedTuple):
    """An entry that waits. `lacks`: a predecessor that is not here; None: its branch is to be joined."""

    dot: Dot
    time_ms: int
    lacks: Dot | None


class Waiting(NamedTuple):
    """The entries of a mailbox that this node does not show: those that wait, of which `first` are some, and others.

    `branches`: how many of those that wait have none waiting for them in turn.
    """

    entries: int
    branches: int
    since_ms: int | None
    first: tuple[WaitingEntry, ...]
    abandoned: int


class KeptMail(NamedTuple):
    """Expunged mail that this node keeps of a mailbox. `since_ms`: when the first of it was expunged."""

    messages: int
    size_bytes: int
    since_ms: int | None


class MailboxFacts(NamedTuple):
    """The state of a mailbox at this node, at one moment. `head_ms`: when its head was numbered, if that is known."""

    chain: Chain
    head_ms: int | None
    is_head_logged: bool
    waiting: Waiting
    is_unproven: bool
    is_postponed: bool
    checkpoint: NamedHead | None
    kept: KeptMail


def mailbox_facts(connection: sqlite3.Connection, key: MailboxKey) -> MailboxFacts:
    """Return what this node knows of a mailbox. Raises DamagedRowError."""
    connection.execute("BEGIN")
    try:
        chain = queries.chain_or_empty(connection, key)
        saved = next(iter(catalog.heads_of(connection, key.mailbox_id)), None)
        logged_ms = None if chain.head is None else _time_ms(connection, chain.head)
        is_saved = saved is not None and saved.dot == chain.head
        query = "SELECT COUNT(*), TOTAL(size_bytes), MIN(expunged_ms) FROM expunged WHERE mailbox = ?"
        messages, size_bytes, since_ms = connection.execute(query, (key.mailbox_id,)).fetchone()
        query = "SELECT 1 FROM postponed WHERE chain IN (?, x'')"
        return MailboxFacts(
            chain,
            saved.time >> COUNTER_BITS if saved is not None and is_saved and logged_ms is None else logged_ms,
            logged_ms is not None,
            _waiting(connection, chain),
            catalog.is_unproven(connection, key.mailbox_id),
            connection.execute(query, (key.mailbox_id,)).fetchone() is not None,
            saved,
            KeptMail(messages, int(size_bytes), since_ms),
        )
    finally:
        connection.execute("COMMIT")


def _waiting(connection: sqlite3.Connection, chain: Chain) -> Waiting:
    query = "SELECT COUNT(*), MIN(time) FROM log WHERE chain = ? AND applied = 0"
    entries, oldest = connection.execute(query, (chain.id,)).fetchone()
    query = "SELECT COUNT(*) FROM log WHERE chain = ? AND applied = 2"
    (abandoned,) = connection.execute(query, (chain.id,)).fetchone()
    query = (
        "SELECT COUNT(*) FROM log l WHERE l.chain = ? AND l.applied = 0 AND NOT EXISTS ("
        "SELECT 1 FROM waiting w WHERE w.chain = l.chain AND w.after_origin = l.origin AND w.after_seq = l.seq)"
    )
    (branches,) = connection.execute(query, (chain.id,)).fetchone()
    query = "SELECT origin, seq, time FROM log WHERE chain = ? AND applied = 0 ORDER BY position LIMIT ?"
    first = [
        WaitingEntry(Dot(origin, seq), time >> COUNTER_BITS, _lacks(connection, chain, Dot(origin, seq)))
        for origin, seq, time in connection.execute(query, (chain.id, LISTED_MAX)).fetchall()
    ]
    return Waiting(entries, branches, None if oldest is None else oldest >> COUNTER_BITS, tuple(first), abandoned)


def _lacks(connection: sqlite3.Connection, chain: Chain, dot: Dot) -> Dot | None:
    """Return a predecessor of a waiting entry that is not here; None if all are."""
    query = "SELECT after_origin, after_seq FROM waiting WHERE chain = ? AND origin = ? AND seq = ? AND after_seq > 0"
    befores = [Dot(*row) for row in connection.execute(query, (chain.id, *dot))]
    return next((one for one in befores if not chain.has_seen(one) and _time_ms(connection, one) is None), None)


def _time_ms(connection: sqlite3.Connection, dot: Dot) -> int | None:
    row = connection.execute("SELECT time FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    return None if row is None else row[0] >> COUNTER_BITS


# ---- mail


class Holding(NamedTuple):
    """A message that a mailbox has, or has had and this node keeps."""

    mailbox_id: bytes
    guid: bytes
    content_hash: bytes


def folders_of(connection: sqlite3.Connection, user: str) -> list[KnownFolder]:
    """Return all folders that the user has, or had; those that clients see come first."""
    query = (
        f"SELECT f.mailbox_id, f.name, {queries.SHOWN_UIDVALIDITY}, f.deleted, {queries.OWN_UIDVALIDITY} FROM folder f"
        " LEFT JOIN chain c ON c.id = f.mailbox_id WHERE f.user = ? AND f.sid <> ? ORDER BY f.deleted, f.time DESC"
    )
    return [
        KnownFolder(row[0], row[1], row[2], bool(row[3]), row[4]) for row in connection.execute(query, (user, GIVEN_UP))
    ]


def at_uid(connection: sqlite3.Connection, mailbox_id: bytes, uid: int) -> list[Holding]:
    """Return the message that the mailbox shows under this UID, or else those expunged that had it last."""
    for table in ("by_uid", "expunged"):
        query = f"SELECT mailbox, guid, content_hash FROM {table} WHERE mailbox = ? AND uid = ?"
        if found := connection.execute(query, (mailbox_id, uid)).fetchall():
            return list(map(Holding._make, found))
    return []


def with_guid(connection: sqlite3.Connection, mailbox_ids: Iterable[bytes], guid: bytes) -> list[Holding]:
    """Return the message in all of these mailboxes that have it, or had it."""
    found: list[Holding] = []
    for mailbox_id in mailbox_ids:
        one = queries.row_of_guid(connection, guid, mailbox_id) or expunged.kept_one(connection, mailbox_id, guid)
        if one is not None:
            found.append(Holding(mailbox_id, guid, one.content_hash))
    return found


def with_body(connection: sqlite3.Connection, mailbox_id: bytes, content_hash: bytes, most: int) -> list[Holding]:
    """Return messages with this body that the mailbox has, or had. Looks at all of its messages."""
    query = "SELECT mailbox, guid, content_hash FROM {} WHERE mailbox = ? AND content_hash = ? LIMIT ?"
    return [
        Holding(*row)
        for table in ("by_uid", "expunged")
        for row in connection.execute(query.format(table), (mailbox_id, content_hash, most))
    ]


def newest(connection: sqlite3.Connection, mailbox_id: bytes, below: int, most: int) -> list[tuple[int, Holding]]:
    """Return messages of the mailbox with UIDs below this one, the highest first."""
    query = (
        "SELECT uid, mailbox, guid, content_hash FROM by_uid WHERE mailbox = ? AND uid < ? ORDER BY uid DESC LIMIT ?"
    )
    return [(uid, Holding(*rest)) for uid, *rest in connection.execute(query, (mailbox_id, below, most))]


def kept_counts(connection: sqlite3.Connection, user: str) -> dict[bytes, int]:
    """Return how many expunged messages this node keeps of each of the user's folders that have any."""
    query = "SELECT mailbox, COUNT(*) FROM expunged WHERE mailbox IN (SELECT mailbox_id FROM folder WHERE user = ?)"
    return dict(connection.execute(f"{query} GROUP BY mailbox", (user,)))


def newest_kept(connection: sqlite3.Connection, mailbox_id: bytes, most: int) -> list[Holding]:
    """Return expunged messages of the mailbox that this node keeps, the last received first."""
    query = "SELECT mailbox, guid, content_hash FROM expunged WHERE mailbox = ? ORDER BY received_ms DESC, guid LIMIT ?"
    return list(map(Holding._make, connection.execute(query, (mailbox_id, most))))


def has_body(connection: sqlite3.Connection, content_hash: bytes) -> bool:
    """Return True if the body is in this node's database."""
    return connection.execute("SELECT 1 FROM content WHERE hash = ?", (content_hash,)).fetchone() is not None
