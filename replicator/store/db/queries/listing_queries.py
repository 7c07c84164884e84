"""Queries on all messages of a mailbox, or many, that make no view: they take little memory, whatever its size."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing

from protocol.values import UidSet
from replicator.mail.compact_uids import CompactUids
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.scratch import Scratch
from replicator.store.db import chain as chains
from replicator.store.db.queries.change_queries import expunged
from replicator.store.db.queries.moment import at_one_moment
from replicator.store.db.rows.message_rows import LISTED_COLUMNS, listed_from
from resync.entry import ID_BYTES

SEARCHED_MAX = 500
"""Ranges of UIDs that are searched by a query each, in some milliseconds; with more, a look at all UIDs is quicker."""

_SELECT = f"SELECT {LISTED_COLUMNS} FROM by_uid WHERE mailbox = ?"


def listing(connection: sqlite3.Connection, mailbox_id: bytes, scratch: Scratch | None = None) -> Listing:
    """Return all messages of a mailbox. Raises DamagedRowError; DiskFullError, UnavailableError, as the next two do."""
    with closing(_listed(connection, f"{_SELECT} ORDER BY uid", mailbox_id)) as found:
        return Listing.of(found, scratch)


def listing_of(
    connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet, scratch: Scratch | None = None
) -> Listing:
    """Return those of these messages that a mailbox has. Raises DamagedRowError."""
    query = f"{_SELECT} AND uid BETWEEN ? AND ? ORDER BY uid"
    with at_one_moment(connection):

        def in_ranges() -> Generator[ListedMessage, None, None]:
            for low, high in uids.ranges:
                yield from _listed(connection, query, mailbox_id, low, high)

        with closing(in_ranges()) as found:  # a full disk would leave its read open, and so the reader behind
            return Listing.of(found, scratch)


def listing_above(
    connection: sqlite3.Connection, mailbox_id: bytes, uid: int, modseq: int, scratch: Scratch | None = None
) -> Listing:
    """Return the messages above a UID, and those that have changed above a MODSEQ. Raises DamagedRowError.

    That takes time for each message of the mailbox, though little for those that are left out.
    """
    query = f"{_SELECT} AND (uid > ? OR modseq > ?) ORDER BY uid"
    with closing(_listed(connection, query, mailbox_id, uid, modseq)) as found:
        return Listing.of(found, scratch)


def accounts_for(connection: sqlite3.Connection, mailbox_id: bytes, uids: CompactUids, up_to: int) -> bool:
    """Return True if all messages up to a UID are among `uids`, and the rest of `uids` is remembered as expunged.

    `uids` are not above that UID. Nearly all messages are among them, so the time is that for the others.
    """
    with at_one_moment(connection):
        if _are_any(connection, mailbox_id, CompactUids([(1, up_to)] if up_to else ()).without(uids)):
            return False
        chain = chains.load_known(connection, mailbox_id)
        (above,) = connection.execute(
            "SELECT count(*) FROM by_uid WHERE mailbox = ? AND uid > ?", (mailbox_id, up_to)
        ).fetchone()
        lacking = len(uids) - (chain.messages - above if chain is not None else 0)
        return not lacking or lacking == sum(uid in uids for uid in expunged(connection, mailbox_id))


def _are_any(connection: sqlite3.Connection, mailbox_id: bytes, uids: CompactUids) -> bool:
    """Return True if any of these messages is there."""
    if uids.range_count > SEARCHED_MAX:
        rows = connection.execute("SELECT uid FROM by_uid WHERE mailbox = ?", (mailbox_id,))
        return any(uid in uids for (uid,) in rows)
    query = "SELECT 1 FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ? LIMIT 1"
    return any(connection.execute(query, (mailbox_id, low, high)).fetchone() for low, high in uids.ranges())


def has_guid(connection: sqlite3.Connection, mailbox_id: bytes, begin: bytes) -> bool:
    """Return True if a mailbox has a message whose GUID begins so."""
    bounds = begin, begin.ljust(ID_BYTES, b"\xff")
    query = "SELECT 1 FROM by_guid WHERE guid BETWEEN ? AND ? AND mailbox = ? LIMIT 1"
    return connection.execute(query, (*bounds, mailbox_id)).fetchone() is not None


def _listed(connection: sqlite3.Connection, query: str, *parameters: object) -> Generator[ListedMessage, None, None]:
    with closing(connection.execute(query, parameters)) as rows:
        yield from map(listed_from, rows)
