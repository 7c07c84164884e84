"""What a state transfer has left to be compared again: mailboxes and trees, or everything (design section 7).

It lies on disk because nothing else tells of it: the log has passed over entries that this node may not show. So it
does not say that it has settled them, until it is equal to a node that has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from msgpack import packb

from protocol.values import Context
from replicator.store.db.message_rows import unpacked_context
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction

EVERYTHING = MailboxKey("", b"", 0)
"""All mailboxes and trees: the node that they were taken over from may itself have lacked something."""

_WHAT = "what a state transfer has left"


class Postponed(NamedTuple):
    """A mailbox or tree, or `EVERYTHING`; the log has passed over entries up to `passed`."""

    key: MailboxKey
    passed: Context


def load(connection: sqlite3.Connection) -> list[Postponed]:
    """All. Raises DamagedRowError."""
    rows = connection.execute("SELECT user, chain, uidvalidity, passed FROM postponed ORDER BY user, chain")
    return [Postponed(MailboxKey(*key), unpacked_context(passed, _WHAT)) for *key, passed in rows]


def count(connection: sqlite3.Connection) -> int:
    """How many mailboxes and trees are known to be otherwise than elsewhere."""
    found: int = connection.execute("SELECT COUNT(*) FROM postponed WHERE chain <> x''").fetchone()[0]
    return found


def unsettled_after(connection: sqlite3.Connection) -> dict[str, int]:
    """Origin -> after which of its entries nothing may be called settled. Raises DamagedRowError."""
    found: dict[str, int] = {}
    for (packed,) in connection.execute("SELECT before FROM postponed"):
        found = _lower(found, unpacked_context(packed, _WHAT))
    return found


def postpone(tx: Transaction, keys: Iterable[MailboxKey], passed: Context) -> None:
    """These are to be compared again; the log is about to begin after what is `passed` over."""
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
    """This is as it should be."""
    tx.connection.execute("DELETE FROM postponed WHERE chain = ?", (key.mailbox_id,))
    tx.commit.unsettled_after = unsettled_after(tx.connection)


def forget_all(tx: Transaction) -> None:
    """Everything is as it should be, as far as anybody can know."""
    tx.connection.execute("DELETE FROM postponed")
    tx.commit.unsettled_after = {}


def _lower(one: Context, other: Context) -> dict[str, int]:
    return {**one, **{origin: min(seq, one.get(origin, seq)) for origin, seq in other.items()}}


def _higher(one: Context, other: Context) -> dict[str, int]:
    return {**one, **{origin: max(seq, one.get(origin, seq)) for origin, seq in other.items()}}
