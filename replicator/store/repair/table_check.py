"""Sweeps over whole tables, a slice at a time, for damage that no single mailbox shows (design section 6).

Each function reads the slice after a key, and returns the number of rows read, the key to continue after (None at the
end), and its findings.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgpack

from protocol.values import Dot
from replicator.store.bodies.body_rows import read_body
from replicator.store.checkpoints import catalog
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.repair.mailbox_check import LOWEST, SLICE_ROWS, Defect, Statement
from resync.entry import tree_id

SLICE_BYTES = 4 << 20  # of compressed bodies

K = TypeVar("K")
F = TypeVar("F")

Key: TypeAlias = tuple[object, object]

FIRST: Key = (LOWEST, LOWEST)

_TAKE_POINTER = (
    "DELETE FROM by_guid WHERE guid = ? AND mailbox = ? AND NOT EXISTS (SELECT 1 FROM by_uid u"
    " WHERE u.mailbox = by_guid.mailbox AND u.uid = by_guid.uid AND u.guid = by_guid.guid)"
)
_TAKE_ROW = (
    "DELETE FROM by_uid WHERE mailbox = ? AND uid = ? AND NOT EXISTS (SELECT 1 FROM chain WHERE id = by_uid.mailbox)"
)
_NO_TREE = "NOT EXISTS (SELECT 1 FROM chain c WHERE c.user = f.user AND c.uidvalidity = 0)"
_TAKE_SUBSCRIPTION = f"DELETE FROM subscription AS f WHERE user = ? AND name = ? AND {_NO_TREE}"
_TAKE_ANNOTATION = f"DELETE FROM annotation AS f WHERE user = ? AND mailbox_id = ? AND name = ? AND {_NO_TREE}"


class TableSlice(NamedTuple, Generic[K, F]):
    """One slice of a sweep: rows read, the key to continue after, and findings."""

    size: int
    after: K | None
    found: list[F]


def unseen_chains(connection: sqlite3.Connection, after: int) -> TableSlice[int, bytes]:
    """Find mailboxes and trees whose rows have not seen entries that the log marks as applied to them."""
    entries = connection.execute(
        "SELECT l.position, l.chain, l.origin, l.seq, l.applied, c.context FROM log l"
        " LEFT JOIN chain c ON c.id = l.chain WHERE l.position > ? ORDER BY l.position LIMIT ?",
        (after, SLICE_ROWS),
    ).fetchall()
    applied = [entry for entry in entries if entry[4] == 1]
    unseen = {chain for _, chain, origin, seq, _, context in applied if not _has_seen(context, origin, seq)}
    return TableSlice(len(entries), entries[-1][0] if entries else None, sorted(unseen))


def _has_seen(context: bytes | None, origin: str, seq: int) -> bool:
    try:
        return context is not None and bool(msgpack.unpackb(context)[origin] >= seq)
    except (ValueError, TypeError, KeyError):
        return False


def stray_pointers(connection: sqlite3.Connection, after: Key) -> TableSlice[Key, Defect]:
    """Find rows of by_guid that lead to no row of by_uid, or to another message's row."""
    pointers = connection.execute(
        "SELECT g.guid, g.mailbox, g.uid, u.guid, c.user FROM by_guid g"
        " LEFT JOIN by_uid u ON u.mailbox = g.mailbox AND u.uid = g.uid LEFT JOIN chain c ON c.id = g.mailbox"
        " WHERE (g.guid, g.mailbox) > (?, ?) ORDER BY g.guid, g.mailbox LIMIT ?",
        (*after, SLICE_ROWS),
    ).fetchall()
    found = [
        Defect("by_guid", f"points to UID {uid}, which is not this message", mailbox, user, None, guid,
               mends=((_TAKE_POINTER, (guid, mailbox)),))
        for guid, mailbox, uid, shown, user in pointers
        if shown != guid
    ]  # fmt: skip
    return TableSlice(len(pointers), pointers[-1][:2] if pointers else None, found)


def stray_rows(
    connection: sqlite3.Connection, after: Key, suspects: Container[bytes] = frozenset()
) -> TableSlice[Key, Defect]:
    """Find rows of by_uid whose mailbox does not exist, or whose body is missing or among the suspects."""
    rows = connection.execute(
        "SELECT u.mailbox, u.uid, u.guid, u.content_hash, u.origin, u.seq, c.user, c.id IS NULL, t.hash IS NULL"
        " FROM by_uid u LEFT JOIN chain c ON c.id = u.mailbox LEFT JOIN content t ON t.hash = u.content_hash"
        " WHERE (u.mailbox, u.uid) > (?, ?) ORDER BY u.mailbox, u.uid LIMIT ?",
        (*after, SLICE_ROWS),
    ).fetchall()
    found: list[Defect] = []
    for mailbox, uid, guid, content_hash, origin, seq, user, is_stray, is_missing in rows:
        if is_stray:
            proven = _is_of_no_mailbox(connection, mailbox, Dot(origin, seq))
            mends = ((_TAKE_ROW, (mailbox, uid)),) if proven else ()
            found.append(Defect("by_uid", "belongs to no mailbox in the log", mailbox, user, uid, guid, mends=mends))
        elif is_missing or content_hash in suspects:
            what = "its body is missing" if is_missing else "its body is damaged"
            found.append(Defect("content", what, mailbox, user, uid, guid, content_hash))
    return TableSlice(len(rows), rows[-1][:2] if rows else None, found)


class Showing(NamedTuple):
    """A message that shows a body. `user` is None if no mailbox of that id is known."""

    mailbox: bytes
    user: str | None
    uid: int
    content_hash: bytes


def showing(connection: sqlite3.Connection, after: Key, bodies: Container[bytes]) -> TableSlice[Key, Showing]:
    """Find messages that show one of these bodies. Damaged rows are skipped."""
    rows = connection.execute(
        "SELECT u.mailbox, u.uid, u.content_hash, c.user FROM by_uid u LEFT JOIN chain c ON c.id = u.mailbox"
        " WHERE (u.mailbox, u.uid) > (?, ?) ORDER BY u.mailbox, u.uid LIMIT ?",
        (*after, SLICE_ROWS),
    ).fetchall()
    found = [
        Showing(mailbox, user if isinstance(user, str) else None, uid, content_hash)
        for mailbox, uid, content_hash, user in rows
        if content_hash in bodies and isinstance(mailbox, bytes) and isinstance(uid, int)
    ]
    return TableSlice(len(rows), rows[-1][:2] if rows else None, found)


def _is_of_no_mailbox(connection: sqlite3.Connection, mailbox: bytes, dot: Dot) -> bool:
    """Return True if the log rules out that the entry put a message there, False if the log lacks the proof."""
    entry = queries.entry_at(connection, dot)
    if entry is not None:
        return entry.mailbox_id != mailbox
    if catalog.is_unproven(connection, mailbox):
        return False
    return queries.log_context(connection).get(dot.origin, 0) < dot.seq


def strays_of_trees(connection: sqlite3.Connection) -> list[Defect]:
    """Find folders, subscriptions and annotations of users without a tree, the first slice of them.

    Those of a lost tree are kept.
    """
    lost: dict[object, bool] = {}

    def mends(user: object, mend: Statement) -> tuple[Statement, ...]:
        if user not in lost:
            lost[user] = isinstance(user, str) and chains.is_lost(connection, tree_id(user))
        return () if lost[user] else (mend,)

    folders = connection.execute(
        f"SELECT mailbox_id, user, name FROM folder f WHERE {_NO_TREE} LIMIT ?",
        (SLICE_ROWS,),
    )
    found = [
        Defect("folder", f"{name!r} belongs to a user without folders", mailbox_id, user,
               mends=mends(user, (f"DELETE FROM folder AS f WHERE mailbox_id = ? AND {_NO_TREE}", (mailbox_id,))))
        for mailbox_id, user, name in folders
    ]  # fmt: skip
    subscriptions = connection.execute(
        f"SELECT user, name FROM subscription f WHERE {_NO_TREE} LIMIT ?",
        (SLICE_ROWS,),
    )
    found += [
        Defect("subscription", f"of {name!r} belongs to a user without folders", None, user,
               mends=mends(user, (_TAKE_SUBSCRIPTION, (user, name))))
        for user, name in subscriptions
    ]  # fmt: skip
    annotations = connection.execute(
        f"SELECT user, mailbox_id, name FROM annotation f WHERE {_NO_TREE} LIMIT ?",
        (SLICE_ROWS,),
    )
    found += [
        Defect("annotation", f"{name!r} belongs to a user without folders", mailbox_id or None, user,
               mends=mends(user, (_TAKE_ANNOTATION, (user, mailbox_id, name))))
        for user, mailbox_id, name in annotations
    ]  # fmt: skip
    return found


def damaged_bodies(connection: sqlite3.Connection, after: int) -> TableSlice[int, bytes]:
    """Find bodies that do not match their hashes. Reads at least one body, and about SLICE_BYTES."""
    query = "SELECT id, hash, length(body) FROM content WHERE id > ? ORDER BY id LIMIT ?"
    found: list[bytes] = []
    read, size_bytes, last = 0, 0, None
    for number, content_hash, length in connection.execute(query, (after, SLICE_ROWS)).fetchall():
        if size_bytes > SLICE_BYTES:
            break
        read, size_bytes, last = read + 1, size_bytes + length, number
        if read_body(connection, content_hash) is None:
            found.append(content_hash)
    return TableSlice(read, last, found)


def sizes(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the approximate numbers of log entries, message rows and bodies."""
    entries, _ = queries.log_counts(connection)
    messages = int(
        connection.execute("SELECT TOTAL(messages) FROM chain").fetchone()[0]
    )  # TOTAL: damaged values cannot overflow it
    contents: int = connection.execute("SELECT COALESCE(MAX(id), 0) FROM content").fetchone()[0]
    return entries, messages, contents
