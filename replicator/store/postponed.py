"""Mailboxes and trees that a state transfer has left otherwise than the other node shows them (design section 7).

They lie on disk because nothing else tells of them: the log of that node begins after what they lack. So of the entries
that the transfer has passed over it is not known that this node shows them; it does not say that it has settled them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from msgpack import packb

from protocol.values import Context
from replicator.store.reading import MailboxKey
from replicator.store.rows import unpacked_context
from replicator.store.transaction import Transaction


def load(connection: sqlite3.Connection) -> list[tuple[MailboxKey, str]]:
    """All, each with the SID of the node."""
    rows = connection.execute("SELECT user, chain, uidvalidity, sid FROM postponed ORDER BY user, chain, sid")
    return [(MailboxKey(user, chain, uidvalidity), sid) for user, chain, uidvalidity, sid in rows]


def count(connection: sqlite3.Connection) -> int:
    """How many mailboxes and trees these are."""
    found: int = connection.execute("SELECT COUNT(DISTINCT chain) FROM postponed").fetchone()[0]
    return found


def unsettled_after(connection: sqlite3.Connection) -> dict[str, int]:
    """Origin -> after which of its entries nothing may be called settled. Raises DamagedRowError."""
    found: dict[str, int] = {}
    for (packed,) in connection.execute("SELECT before FROM postponed"):
        for origin, seq in unpacked_context(packed, "a postponed mailbox").items():
            found[origin] = min(seq, found.get(origin, seq))
    return found


def postpone(tx: Transaction, keys: Iterable[MailboxKey], sid: str, passed: Context) -> None:
    """These are to be compared with that node again; the log is about to begin after what is `passed` over."""
    before = packb({origin: tx.seen(origin) for origin, seq in passed.items() if tx.seen(origin) < seq})
    tx.connection.executemany(
        "INSERT OR IGNORE INTO postponed (user, chain, uidvalidity, sid, before) VALUES (?,?,?,?,?)",
        ((*key, sid, before) for key in keys),
    )
    tx.commit.unsettled_after = unsettled_after(tx.connection)


def forget(tx: Transaction, key: MailboxKey, sid: str) -> None:
    """This one is as that node shows it."""
    tx.connection.execute("DELETE FROM postponed WHERE chain = ? AND sid = ?", (key.mailbox_id, sid))
    tx.commit.unsettled_after = unsettled_after(tx.connection)
