"""Mail that has left its mailbox and is kept for `content.keep_expunged` (design section 6, "Expunged mail").

It is this node's alone: in no log, no digest and no checkpoint. A message is kept once for each mailbox, and no longer
than until it is there again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from replicator.store.db.message_rows import DamagedRowError
from resync.entry import MailAdd
from resync.row import Row

_COLUMNS = "mailbox, guid, uid, flags, received_ms, size_bytes, content_hash, expunged_ms"
_VALUES = f"INTO expunged ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)"

After = tuple[int, bytes]
"""Received date and GUID: what is kept is listed in their order."""


class Kept(NamedTuple):
    """A message as it was shown last."""

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
        """Its place in the order."""
        return self.received_ms, self.guid


def keep(connection: sqlite3.Connection, mailbox_id: bytes, rows: Iterable[Row], expunged_ms: int) -> None:
    """These have left the mailbox that showed them."""
    connection.executemany(
        f"INSERT OR REPLACE {_VALUES}",
        (
            (mailbox_id, row.guid, row.uid, " ".join(sorted(row.visible_flags())), row.received_ms, row.size_bytes,
             row.content_hash, expunged_ms)
            for row in rows
        ),
    )  # fmt: skip


def keep_unshown(connection: sqlite3.Connection, mailbox_id: bytes, adds: Iterable[MailAdd], expunged_ms: int) -> None:
    """These came and went on another branch. What is kept already was shown here, and is left as it is."""
    connection.executemany(
        f"INSERT OR IGNORE {_VALUES}",
        (
            (mailbox_id, add.guid, add.uid, " ".join(sorted(add.flags)), add.received_ms, add.size_bytes,
             add.content_hash, expunged_ms)
            for add in adds
        ),
    )  # fmt: skip


def take_back(connection: sqlite3.Connection, mailbox_id: bytes, guids: Iterable[bytes]) -> None:
    """These are in the mailbox again."""
    connection.executemany(
        "DELETE FROM expunged WHERE mailbox = ? AND guid = ?", ((mailbox_id, guid) for guid in guids)
    )


def are_kept(connection: sqlite3.Connection, mailbox_id: bytes) -> bool:
    """Whether anything is kept of this mailbox."""
    return connection.execute("SELECT 1 FROM expunged WHERE mailbox = ? LIMIT 1", (mailbox_id,)).fetchone() is not None


def is_kept(connection: sqlite3.Connection, mailbox_id: bytes, guid: bytes) -> bool:
    """Whether that message has left the mailbox, and is kept."""
    query = "SELECT 1 FROM expunged WHERE mailbox = ? AND guid = ?"
    return connection.execute(query, (mailbox_id, guid)).fetchone() is not None


def kept(
    connection: sqlite3.Connection, mailbox_ids: Iterable[bytes], since_ms: int, after: After | None, count: int
) -> list[Kept]:
    """What was expunged from any of these mailboxes at or after a time: the first after a place in their order.

    What was expunged from several comes once, as it was shown last. Raises DamagedRowError.
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


def count(connection: sqlite3.Connection, mailbox_ids: Iterable[bytes], since_ms: int) -> int:
    """How many `kept` has in all, or a few more: what was expunged from several counts for each."""
    query = "SELECT COUNT(*) FROM expunged WHERE mailbox = ? AND expunged_ms >= ?"
    return sum(connection.execute(query, (mailbox_id, since_ms)).fetchone()[0] for mailbox_id in mailbox_ids)


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many messages are kept, and their bytes, although several may have one text. See also `orphaned_bodies`."""
    query = "SELECT COUNT(*), TOTAL(size_bytes) FROM expunged WHERE mailbox <> x''"
    messages, size_bytes = connection.execute(query).fetchone()
    return messages, int(size_bytes)


def newest_ms(connection: sqlite3.Connection) -> int | None:
    """When the last of what is kept was expunged."""
    newest: int | None = connection.execute("SELECT MAX(expunged_ms) FROM expunged").fetchone()[0]
    return newest


def mailboxes_named(connection: sqlite3.Connection, user: str, name: str) -> list[bytes]:
    """The mailboxes of all folders that had this name last, also of those that were deleted."""
    rows = connection.execute("SELECT mailbox_id FROM folder WHERE user = ? AND name = ?", (user, name))
    return [mailbox_id for (mailbox_id,) in rows]


def mailboxes_with(connection: sqlite3.Connection, user: str, guid: bytes) -> list[bytes]:
    """The user's mailboxes that have this message."""
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
        raise DamagedRowError("a message that was expunged and kept", "cannot be read")
    return Kept(mailbox_id, guid, uid, tuple(flags.split()), received_ms, size_bytes, content_hash, expunged_ms)
