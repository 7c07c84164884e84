"""Queries on all messages of a mailbox, or many, that make no view: they take little memory, whatever its size."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from protocol.values import UidSet
from replicator.mail.listing import ListedMessage, Listing
from replicator.store.db.queries.moment import at_one_moment
from replicator.store.db.rows.message_rows import LISTED_COLUMNS, listed_from

COUNTED_MAX = 500
"""Ranges of UIDs that are counted by a query each, in some milliseconds; with more, a look at all UIDs is quicker."""

_SELECT = f"SELECT {LISTED_COLUMNS} FROM by_uid WHERE mailbox = ?"


def listing(connection: sqlite3.Connection, mailbox_id: bytes) -> Listing:
    """Return all messages of a mailbox. Raises DamagedRowError."""
    return Listing.of(_listed(connection, f"{_SELECT} ORDER BY uid", mailbox_id))


def listing_of(connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet) -> Listing:
    """Return those of these messages that a mailbox has. Raises DamagedRowError."""
    query = f"{_SELECT} AND uid BETWEEN ? AND ? ORDER BY uid"
    with at_one_moment(connection):
        return Listing.of(one for low, high in uids.ranges for one in _listed(connection, query, mailbox_id, low, high))


def listing_above(connection: sqlite3.Connection, mailbox_id: bytes, uid: int, modseq: int) -> Listing:
    """Return the messages above a UID, and those that have changed above a MODSEQ. Raises DamagedRowError.

    That takes time for each message of the mailbox, though little for those that are left out.
    """
    query = f"{_SELECT} AND (uid > ? OR modseq > ?) ORDER BY uid"
    return Listing.of(_listed(connection, query, mailbox_id, uid, modseq))


def accounts_for(connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet, up_to: int) -> bool:
    """Return True if all messages up to a UID are among `uids`, and the rest of `uids` is remembered as expunged."""
    with at_one_moment(connection):
        if len(uids.ranges) <= COUNTED_MAX:
            known = _count(connection, mailbox_id, uids)
            if known != _count(connection, mailbox_id, UidSet(((1, up_to),))):
                return False
            if known == len(uids):
                return True
        rows = connection.execute(
            "SELECT uid FROM by_uid WHERE mailbox = ? AND uid <= ? ORDER BY uid", (mailbox_id, up_to)
        )
        here = UidSet.ascending(uid for (uid,) in rows)
        rows = connection.execute("SELECT uid FROM expunged WHERE mailbox = ?", (mailbox_id,))
        gone = UidSet.of(uid for (uid,) in rows)
        return not here.without(uids) and not uids.without(here).without(gone)


def _count(connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet) -> int:
    query = "SELECT count(*) FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ?"
    counts = (connection.execute(query, (mailbox_id, low, high)).fetchone() for low, high in uids.ranges)
    return sum(count for (count,) in counts)


def _listed(connection: sqlite3.Connection, query: str, *parameters: object) -> Iterator[ListedMessage]:
    with closing(connection.execute(query, parameters)) as rows:
        yield from map(listed_from, rows)
