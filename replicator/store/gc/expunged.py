"""Expunged mail, kept for `content.keep_expunged` (design section 6, "Expunged mail").

It is local to this node: in no log, no digest and no checkpoint. A message is kept once for each mailbox, and only
until it is in the mailbox again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from replicator.store.db.rows.message_rows import DamagedRowError
from resync.entry import MailAdd
from resync.row import Row

_COLUMNS = "mailbox, guid, uid, flags, received_ms, size_bytes, content_hash, expunged_ms"
_VALUES = f"INTO expunged ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)"

After = tuple[int, bytes]
"""Received date and GUID: the order in which kept mail is listed."""


class Kept(NamedTuple):
    """An expunged message as it was last shown."""

    mailbox_id: bytes
    guid: bytes
    uid: int
    flags: tuple[str, ...]
    received_ms: int
    size_bytes: int
    content_hash: bytes
    expunged_ms: int

    @property
    def after(self) -> After:
        """The message's place in the order."""
        return self.received_ms, self.guid


def keep(connection: sqlite3.Connection, mailbox_id: bytes, rows: Iterable[Row], expunged_ms: int) -> None:
    """Keep messages that have left the mailbox that showed them."""
    connection.executemany(
        f"INSERT OR REPLACE {_VALUES}",
        (
            (mailbox_id, row.guid, row.uid, " ".join(sorted(row.visible_flags())), row.received_ms, row.size_bytes,
             row.content_hash, expunged_ms)
            for row in rows
        ),
    )  # fmt: skip


def keep_unshown(connection: sqlite3.Connection, mailbox_id: bytes, adds: Iterable[MailAdd], expunged_ms: int) -> None:
    """Keep messages that came and went on another branch. Messages kept already were shown here and stay unchanged."""
    connection.executemany(
        f"INSERT OR IGNORE {_VALUES}",
        (
            (mailbox_id, add.guid, add.uid, " ".join(sorted(add.flags)), add.received_ms, add.size_bytes,
             add.content_hash, expunged_ms)
            for add in adds
        ),
    )  # fmt: skip


def take_back(connection: sqlite3.Connection, mailbox_id: bytes, guids: Iterable[bytes]) -> None:
    """Drop kept messages that are in the mailbox again."""
    connection.executemany(
        "DELETE FROM expunged WHERE mailbox = ? AND guid = ?", ((mailbox_id, guid) for guid in guids)
    )


def are_kept(connection: sqlite3.Connection, mailbox_id: bytes) -> bool:
    """Return True if any message of this mailbox is kept."""
    return connection.execute("SELECT 1 FROM expunged WHERE mailbox = ? LIMIT 1", (mailbox_id,)).fetchone() is not None


def is_kept(connection: sqlite3.Connection, mailbox_id: bytes, guid: bytes) -> bool:
    """Return True if the message has left the mailbox and is kept."""
    query = "SELECT 1 FROM expunged WHERE mailbox = ? AND guid = ?"
    return connection.execute(query, (mailbox_id, guid)).fetchone() is not None


def kept(
    connection: sqlite3.Connection, mailbox_ids: Iterable[bytes], since_ms: int, after: After | None, count: int
) -> list[Kept]:
    """Return messages expunged from these mailboxes at or after a time: the first `count` after a place in the order.

    A message expunged from several mailboxes comes once, as it was last shown. Raises DamagedRowError.
    """
    where, values = ("", ()) if after is None else (" AND (received_ms, guid) > (?, ?)", after)
    query = (
        f"SELECT {_COLUMNS} FROM expunged WHERE mailbox = ?{where} AND expunged_ms >= ?"
        " ORDER BY received_ms, guid LIMIT ?"
    )
    found: dict[After, Kept] = {}
    for mailbox_id in mailbox_ids:
        for one in map(_kept_from, connection.execute(query, (mailbox_id, *values, since_ms, count))):
            if one.after not in found or found[one.after].expunged_ms < one.expunged_ms:
                found[one.after] = one
    return [found[at] for at in sorted(found)][:count]


def kept_one(connection: sqlite3.Connection, mailbox_id: bytes, guid: bytes) -> Kept | None:
    """Return a message that was expunged from the mailbox, if it is kept. Raises DamagedRowError."""
    query = f"SELECT {_COLUMNS} FROM expunged WHERE mailbox = ? AND guid = ?"
    row = connection.execute(query, (mailbox_id, guid)).fetchone()
    return None if row is None else _kept_from(row)


def count(connection: sqlite3.Connection, mailbox_ids: Iterable[bytes], since_ms: int) -> int:
    """Return the number of messages that `kept` has, or a few more: it counts a message once for each mailbox."""
    query = "SELECT COUNT(*) FROM expunged WHERE mailbox = ? AND expunged_ms >= ?"
    return sum(connection.execute(query, (mailbox_id, since_ms)).fetchone()[0] for mailbox_id in mailbox_ids)


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of kept messages and their bytes; shared bodies count several times.

    See also `orphaned_bodies`.
    """
    query = "SELECT COUNT(*), TOTAL(size_bytes) FROM expunged WHERE mailbox <> x''"
    messages, size_bytes = connection.execute(query).fetchone()
    return messages, int(size_bytes)


def oldest_ms(connection: sqlite3.Connection) -> int | None:
    """Return the earliest expunge time of any kept message, or of an orphaned body."""
    oldest: int | None = connection.execute("SELECT MIN(expunged_ms) FROM expunged").fetchone()[0]
    return oldest


def newest_ms(connection: sqlite3.Connection) -> int | None:
    """Return the latest expunge time of any kept message."""
    newest: int | None = connection.execute("SELECT MAX(expunged_ms) FROM expunged").fetchone()[0]
    return newest


def mailboxes_named(connection: sqlite3.Connection, user: str, name: str) -> list[bytes]:
    """Return the mailboxes of all folders that had this name last, including deleted ones."""
    rows = connection.execute("SELECT mailbox_id FROM folder WHERE user = ? AND name = ?", (user, name))
    return [mailbox_id for (mailbox_id,) in rows]


def mailboxes_with(connection: sqlite3.Connection, user: str, guid: bytes) -> list[bytes]:
    """Return the user's mailboxes that have this message."""
    rows = connection.execute(
        "SELECT g.mailbox FROM by_guid g JOIN chain c ON c.id = g.mailbox WHERE g.guid = ? AND c.user = ?", (guid, user)
    )
    return [mailbox_id for (mailbox_id,) in rows]


def _kept_from(columns: tuple[object, ...]) -> Kept:
    mailbox_id, guid, uid, flags, received_ms, size_bytes, content_hash, expunged_ms = columns
    if not (
        isinstance(mailbox_id, bytes)
        and isinstance(guid, bytes)
        and isinstance(uid, int)
        and isinstance(flags, str)
        and isinstance(received_ms, int)
        and isinstance(size_bytes, int)
        and isinstance(content_hash, bytes)
        and isinstance(expunged_ms, int)
    ):
        raise DamagedRowError("the row of a message in retention", "cannot be read")
    return Kept(mailbox_id, guid, uid, tuple(flags.split()), received_ms, size_bytes, content_hash, expunged_ms)
