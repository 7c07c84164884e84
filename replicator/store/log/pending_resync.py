"""Mailboxes and trees, or everything, that a state transfer has left to be compared again (design section 7).

The record is on disk because nothing else tells of it: the log has passed over entries that this node may not show. So
the node does not announce them as settled until it is equal to a node that has settled them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from msgpack import packb

from protocol.values import Context
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows.message_rows import unpacked_context
from replicator.store.db.transaction import Transaction

EVERYTHING = MailboxKey("", b"", 0)
"""Key for all mailboxes and trees: the node that they were taken over from may itself have lacked something."""

_WHAT = "a row of table postponed"


class Postponed(NamedTuple):
    """A mailbox or tree, or `EVERYTHING`; the log has passed over its entries up to `passed`."""

    key: MailboxKey
    passed: Context


def load(connection: sqlite3.Connection) -> list[Postponed]:
    """Return all records. Raises DamagedRowError."""
    rows = connection.execute("SELECT user, chain, uidvalidity, passed FROM postponed ORDER BY user, chain")
    return [Postponed(MailboxKey(*key), unpacked_context(passed, _WHAT)) for *key, passed in rows]


def count(connection: sqlite3.Connection) -> int:
    """Return the number of mailboxes and trees known to differ from other nodes."""
    found: int = connection.execute("SELECT COUNT(*) FROM postponed WHERE chain <> x''").fetchone()[0]
    return found


def unsettled_after(connection: sqlite3.Connection) -> dict[str, int]:
    """Return, per origin, the seq after which no entry may be called settled. Raises DamagedRowError."""
    found: dict[str, int] = {}
    for (packed,) in connection.execute("SELECT before FROM postponed"):
        found = _lower(found, unpacked_context(packed, _WHAT))
    return found


def postpone(tx: Transaction, keys: Iterable[MailboxKey], passed: Context) -> None:
    """Record mailboxes and trees to be compared again; the log is about to begin after what is `passed` over."""
    before = {origin: tx.seen(origin) for origin, seq in passed.items() if tx.seen(origin) < seq}
    for key in keys:
        query = "SELECT before, passed FROM postponed WHERE chain = ?"
        row = tx.connection.execute(query, (key.mailbox_id,)).fetchone()
        known = [unpacked_context(packed, _WHAT) for packed in row] if row else [{}, {}]
        both = (packb(_lower(before, known[0])), packb(_higher(passed, known[1])))
        tx.connection.execute(
            "INSERT OR REPLACE INTO postponed (user, chain, uidvalidity, before, passed) VALUES (?,?,?,?,?)",
            (*key, *both),
        )
    tx.commit.unsettled_after = unsettled_after(tx.connection)


def forget(tx: Transaction, key: MailboxKey) -> None:
    """Delete the record of a mailbox or tree that is equal again."""
    tx.connection.execute("DELETE FROM postponed WHERE chain = ?", (key.mailbox_id,))
    tx.commit.unsettled_after = unsettled_after(tx.connection)


def forget_all(tx: Transaction) -> None:
    """Delete all records: no difference is known any more."""
    tx.connection.execute("DELETE FROM postponed")
    tx.commit.unsettled_after = {}


def _lower(one: Context, other: Context) -> dict[str, int]:
    return {**one, **{origin: min(seq, one.get(origin, seq)) for origin, seq in other.items()}}


def _higher(one: Context, other: Context) -> dict[str, int]:
    return {**one, **{origin: max(seq, one.get(origin, seq)) for origin, seq in other.items()}}
