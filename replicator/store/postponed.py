"""Mailboxes and trees that a state transfer has left otherwise than the other node shows them (design section 7).

They lie on disk because nothing else tells of them: the log of that node begins after what they lack.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from replicator.store.reading import MailboxKey


def load(connection: sqlite3.Connection) -> list[tuple[MailboxKey, str]]:
    """All, each with the SID of the node."""
    rows = connection.execute("SELECT user, chain, uidvalidity, sid FROM postponed ORDER BY user, chain")
    return [(MailboxKey(user, chain, uidvalidity), sid) for user, chain, uidvalidity, sid in rows]


def save(connection: sqlite3.Connection, keys: Iterable[MailboxKey], sid: str) -> None:
    """These are to be compared with that node again."""
    connection.executemany(
        "INSERT OR REPLACE INTO postponed (user, chain, uidvalidity, sid) VALUES (?,?,?,?)",
        ((*key, sid) for key in keys),
    )


def forget(connection: sqlite3.Connection, key: MailboxKey) -> None:
    """This one is as it should be."""
    connection.execute("DELETE FROM postponed WHERE chain = ?", (key.mailbox_id,))
