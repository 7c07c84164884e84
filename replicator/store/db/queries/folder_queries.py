"""Queries on a user's folders, subscriptions and annotations."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from replicator.mail.mailstore import INBOX, SEPARATOR, Folder
from replicator.mail.watched_folders import WatchedFolder
from replicator.store.db.chain import Chain
from replicator.store.db.queries.mailbox_key import MailboxKey
from resync.entry import (
    AnnotationState,
    Change,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    SubscriptionState,
    TreeRow,
)
from resync.folder_tree import UIDVALIDITY_MAX, TreeState
from resync.node_annotations import KEPT_UIDVALIDITY, OWN, UIDVALIDITY_HOLDER

OF_CLIENTS = f"value IS NOT NULL AND substr(name, 1, {len(OWN)}) <> '{OWN}'"
"""Condition for annotations that clients have set and that are not removed."""


class FolderRecord(NamedTuple):
    """A visible folder: one that is not deleted, or that received mail while it was being deleted."""

    mailbox_id: bytes
    name: str
    uidvalidity: int  # as clients see it
    own: int  # of the tree

    def key(self, user: str) -> MailboxKey:
        """Return the key of the folder's mailbox."""
        return MailboxKey(user, self.mailbox_id, self.own)

    def folder_of(self, user: str) -> Folder:
        """Return it as the user's folder."""
        return Folder(user, self.name, self.mailbox_id, self.uidvalidity, self.own)


OWN_UIDVALIDITY = "f.uidvalidity + COALESCE(c.risen, 0)"
"""The UIDVALIDITY of folder `f` in the tree, with what merges have added to it in its chain `c`."""
_KEPT_NUMBER = "CAST(CAST(k.value AS TEXT) AS INTEGER)"
SHOWN_UIDVALIDITY = (
    "COALESCE(CASE WHEN COALESCE(c.risen, 0) = 0 THEN ("
    f"SELECT {_KEPT_NUMBER} FROM annotation k"
    f" JOIN annotation o ON o.user = k.user AND o.mailbox_id = x'' AND o.name = '{UIDVALIDITY_HOLDER}' || k.value"
    f" WHERE k.user = f.user AND k.mailbox_id = f.mailbox_id AND k.name = '{KEPT_UIDVALIDITY}'"
    " AND o.value = CAST(lower(hex(f.mailbox_id)) || ' ' || f.uidvalidity AS BLOB)"
    f" AND {_KEPT_NUMBER} BETWEEN 1 AND {UIDVALIDITY_MAX} AND CAST({_KEPT_NUMBER} AS TEXT) = CAST(k.value AS TEXT)"
    f") END, {OWN_UIDVALIDITY})"
)
"""The UIDVALIDITY of folder `f`, whose chain is `c`, as clients see it: that of another server, or its own.

It is its own if a merge has given the folder another one, or raised it, or if another folder has that of the server.
"""
_OF_FOLDERS = (
    " FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id WHERE f.user = ? AND (f.deleted = 0 OR c.messages > 0)"
)
_FOLDERS = f"SELECT f.mailbox_id, f.name, {SHOWN_UIDVALIDITY}, {OWN_UIDVALIDITY}" + _OF_FOLDERS
_WATCHED = (
    f"SELECT f.name, f.mailbox_id, {SHOWN_UIDVALIDITY}, COALESCE(c.messages, 0),"
    f" COALESCE(c.unseen, 0), COALESCE(c.uidnext, 1), COALESCE(c.highestmodseq, 0), {OWN_UIDVALIDITY}" + _OF_FOLDERS
)
_NAMED_AS_STRAY = (
    " AND f.name IN (SELECT g.name FROM folder g JOIN chain d ON d.id = g.mailbox_id"
    " WHERE g.user = ?1 AND g.deleted = 1 AND d.messages > 0)"
)
_TREE_FOLDERS = "SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder WHERE user = ?"
_IN_UIDVALIDITY_INDEX = "uidvalidity > 0"
"""Condition of the index `folder_uidvalidity`, which serves queries that have it, too."""
# Two visible folders share a name only if one of them is deleted; the one not deleted sorts last and counts.
_ORDER = " ORDER BY f.deleted DESC, f.time, f.sid, f.mailbox_id"


def folders(connection: sqlite3.Connection, user: str) -> dict[str, FolderRecord]:
    """Return the user's visible folders by name."""
    return {record.name: record for record in folders_in_sight(connection, user)}


def ordered_folders(connection: sqlite3.Connection, user: str) -> list[Folder]:
    """Return the user's visible folders: INBOX first, the rest by name."""
    found = [record.folder_of(user) for record in folders(connection, user).values()]
    return sorted(found, key=lambda folder: (folder.name != INBOX, folder.name))


def folders_in_sight(connection: sqlite3.Connection, user: str) -> list[FolderRecord]:
    """Return the user's visible folders.

    Of several with one name the last counts, and the others' mail belongs there.
    """
    return [FolderRecord(*row) for row in connection.execute(_FOLDERS + _ORDER, (user,))]


def folder(connection: sqlite3.Connection, user: str, name: str) -> FolderRecord | None:
    """Return the visible folder of that name, if any."""
    found = connection.execute(_FOLDERS + " AND f.name = ?" + _ORDER, (user, name)).fetchall()
    return FolderRecord(*found[-1]) if found else None


def folder_by_id(connection: sqlite3.Connection, user: str, mailbox_id: bytes) -> FolderRecord | None:
    """Return the visible folder with this id; None also if another one has its name and counts."""
    query = "SELECT name FROM folder WHERE mailbox_id = ? AND user = ?"
    row = connection.execute(query, (mailbox_id, user)).fetchone()
    found = None if row is None else folder(connection, user, row[0])
    return found if found is not None and found.mailbox_id == mailbox_id else None


def folders_below(connection: sqlite3.Connection, user: str, name: str) -> dict[str, FolderRecord]:
    """Return the user's visible folders below this one, by name."""
    query = _FOLDERS + " AND f.name > ? AND f.name < ?" + _ORDER
    rows = connection.execute(query, (user, name + SEPARATOR, end_of(name + SEPARATOR)))
    return {record.name: record for record in map(FolderRecord._make, rows)}


def folders_beside_strays(connection: sqlite3.Connection, user: str) -> list[FolderRecord]:
    """Return those of `folders_in_sight` that have the name of a deleted folder with mail."""
    return [FolderRecord(*row) for row in connection.execute(_FOLDERS + _NAMED_AS_STRAY + _ORDER, (user,))]


def has_room_for_folders(connection: sqlite3.Connection, user: str, more: int, limit: int) -> bool:
    """Return True if the user's visible folders with so many more are not above the limit."""
    (rows,) = connection.execute("SELECT COUNT(*) FROM folder WHERE user = ?", (user,)).fetchone()
    if rows + more <= limit:  # with deleted ones; counted by an index alone, so this is quick
        return True
    (names,) = connection.execute(f"SELECT COUNT(DISTINCT f.name) {_OF_FOLDERS}", (user,)).fetchone()
    return bool(names + more <= limit)


def highest_uidvalidity(connection: sqlite3.Connection, user: str) -> int | None:
    """Return the highest UIDVALIDITY in the tree that a folder of the user has or had; None if there was no folder."""
    query = f"SELECT MAX(uidvalidity) FROM folder WHERE user = ? AND {_IN_UIDVALIDITY_INDEX}"
    highest: int | None = connection.execute(query, (user,)).fetchone()[0]
    return highest


def has_uidvalidity_within(
    connection: sqlite3.Connection, user: str, lowest: int, highest: int, *, ignoring: tuple[bytes, int]
) -> bool:
    """Return True if a folder of the user has or had a UIDVALIDITY of its own in this range.

    `ignoring`: a folder's id, and the UIDVALIDITY with which it does not count.
    """
    query = (
        f"SELECT 1 FROM folder WHERE user = ? AND {_IN_UIDVALIDITY_INDEX} AND uidvalidity BETWEEN ? AND ?"
        " AND (mailbox_id, uidvalidity) <> (?, ?)"
    )
    return connection.execute(query, (user, lowest, highest, *ignoring)).fetchone() is not None


def watched_folders(connection: sqlite3.Connection, user: str) -> dict[str, WatchedFolder]:
    """Return the user's visible folders with their counters, by name."""
    rows = connection.execute(_WATCHED + _ORDER, (user,))
    return {name: WatchedFolder(*columns) for name, *columns in rows}


def watched_folder(connection: sqlite3.Connection, user: str, name: str) -> WatchedFolder | None:
    """Return the visible folder of that name with its counters, if any."""
    found = connection.execute(_WATCHED + " AND f.name = ?" + _ORDER, (user, name)).fetchall()
    return WatchedFolder(*found[-1][1:]) if found else None


def is_subscribed(connection: sqlite3.Connection, user: str, name: str) -> bool:
    """Return True if the user subscribes to this name."""
    query = "SELECT 1 FROM subscription WHERE user = ? AND name = ? AND subscribed = 1"
    return connection.execute(query, (user, name)).fetchone() is not None


def folder_name(connection: sqlite3.Connection, mailbox_id: bytes) -> str | None:
    """Return the name of a folder, deleted or not."""
    row = connection.execute("SELECT name FROM folder WHERE mailbox_id = ?", (mailbox_id,)).fetchone()
    return row[0] if row else None


def uidvalidity(connection: sqlite3.Connection, mailbox_id: bytes) -> int | None:
    """Return a folder's own UIDVALIDITY with what merges have added, or None if the user's tree is not here."""
    query = f"SELECT {OWN_UIDVALIDITY} FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id WHERE f.mailbox_id = ?"
    row = connection.execute(query, (mailbox_id,)).fetchone()
    return row[0] if row else None


def uidvalidities(connection: sqlite3.Connection, mailbox_id: bytes) -> tuple[int, int] | None:
    """Return a folder's UIDVALIDITY as clients see it, and `uidvalidity`; None if the user's tree is not here."""
    query = (
        f"SELECT {SHOWN_UIDVALIDITY}, {OWN_UIDVALIDITY} FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id"
        " WHERE f.mailbox_id = ?"
    )
    row: tuple[int, int] | None = connection.execute(query, (mailbox_id,)).fetchone()
    return row


def annotations_of(connection: sqlite3.Connection, user: str, mailbox_id: bytes) -> dict[str, bytes]:
    """Return the annotations of a folder or, with `NOWHERE`, of the account: value by name, in the order of names.

    Those that nodes alone set are left out.
    """
    query = f"SELECT name, value FROM annotation WHERE user = ? AND mailbox_id = ? AND {OF_CLIENTS} ORDER BY name"
    return dict(connection.execute(query, (user, mailbox_id)))


def had_annotations(
    connection: sqlite3.Connection, user: str, mailbox_id: bytes, names: Iterable[str]
) -> dict[str, bytes | None]:
    """Return the values of those of these annotations that a folder, or the account, has or had; None: removed."""
    query = "SELECT value FROM annotation WHERE user = ? AND mailbox_id = ? AND name = ?"
    rows = ((name, connection.execute(query, (user, mailbox_id, name)).fetchone()) for name in names)
    return {name: row[0] for name, row in rows if row is not None}


def annotation_names(connection: sqlite3.Connection, user: str, mailbox_id: bytes, first: str, last: str) -> list[str]:
    """Return the names from `first` to `last` of annotations that a folder, or the account, has or had, in order."""
    query = "SELECT name FROM annotation WHERE user = ? AND mailbox_id = ? AND name BETWEEN ? AND ? ORDER BY name"
    return [name for (name,) in connection.execute(query, (user, mailbox_id, first, last))]


def count_annotations_below(connection: sqlite3.Connection, user: str, mailbox_id: bytes, prefix: str) -> int:
    """Return the number of annotations with this beginning of their names that a folder, or the account, has or had."""
    query = "SELECT COUNT(*) FROM annotation WHERE user = ? AND mailbox_id = ? AND name >= ? AND name < ?"
    count: int = connection.execute(query, (user, mailbox_id, prefix, end_of(prefix))).fetchone()[0]
    return count


def values_below(connection: sqlite3.Connection, user: str, mailbox_id: bytes, begin: str) -> list[bytes]:
    """Return the values of the annotations of a folder, or the account, whose names begin so."""
    query = "SELECT value FROM annotation WHERE user = ? AND mailbox_id = ? AND name >= ? AND name < ?"
    values = connection.execute(query, (user, mailbox_id, begin, end_of(begin)))
    return [value for (value,) in values if value is not None]


def end_of(prefix: str) -> str:
    """Return the least text above all that begin with this prefix, which ends in an ASCII character."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def count_annotations(connection: sqlite3.Connection, user: str, mailbox_id: bytes) -> int:
    """Return the number of annotations of a folder or, with `NOWHERE`, of the account."""
    query = f"SELECT COUNT(*) FROM annotation WHERE user = ? AND mailbox_id = ? AND {OF_CLIENTS}"
    count: int = connection.execute(query, (user, mailbox_id)).fetchone()[0]
    return count


def annotated(connection: sqlite3.Connection, user: str, name: str) -> dict[bytes, bytes]:
    """Return the values of one annotation of all folders that have it, by mailbox id."""
    return dict(
        connection.execute(
            "SELECT mailbox_id, value FROM annotation WHERE user = ? AND name = ? AND value IS NOT NULL", (user, name)
        )
    )


def subscriptions(connection: sqlite3.Connection, user: str) -> frozenset[str]:
    """Return the names that the user subscribes to."""
    rows = connection.execute("SELECT name FROM subscription WHERE user = ? AND subscribed = 1", (user,))
    return frozenset(name for (name,) in rows)


def tree_state(connection: sqlite3.Connection, user: str, chain: Chain) -> TreeState:
    """Return a user's whole folder tree; `chain` is its head."""
    return TreeState.of(chain.highestmodseq, chain.context, tree_rows(connection, user))


def tree_part(connection: sqlite3.Connection, user: str, chain: Chain, changes: Sequence[Change]) -> TreeState:
    """Return as much of a user's folder tree as decides whether these changes, of which none is a merge, fit it.

    It has the folders that they name, the living ones whose names they give, and the one of the highest UIDVALIDITY;
    and no annotations, since changes do not depend on those that are there.
    """
    wanted: list[tuple[str, tuple[object, ...]]] = [(f"{_IN_UIDVALIDITY_INDEX} ORDER BY uidvalidity DESC LIMIT 1", ())]
    for change in changes:
        if isinstance(change, FolderCreate | FolderRename | FolderDelete | FolderAnnotate):
            wanted.append(("mailbox_id = ?", (change.mailbox_id,)))
        if isinstance(change, FolderCreate | FolderRename):
            wanted.append(("name = ? AND deleted = 0", (change.name,)))
    found = (connection.execute(f"{_TREE_FOLDERS} AND {which}", (user, *values)) for which, values in wanted)
    return TreeState.of(chain.highestmodseq, chain.context, map(_folder_state, itertools.chain.from_iterable(found)))


def _folder_state(row: tuple[bytes, str, str, int, int, int, str]) -> FolderState:
    mailbox_id, user, name, uidvalidity, deleted, time, sid = row
    return FolderState(mailbox_id, user, name, uidvalidity, bool(deleted), time, sid)


def tree_rows(connection: sqlite3.Connection, user: str) -> list[TreeRow]:
    """Return all folders, subscriptions and annotations of a user's tree, including deleted ones."""
    folders = connection.execute(_TREE_FOLDERS, (user,))
    subscriptions = connection.execute(
        "SELECT user, name, subscribed, time, sid FROM subscription WHERE user = ?", (user,)
    )
    annotations = connection.execute(
        "SELECT user, mailbox_id, name, value, time, sid FROM annotation WHERE user = ?", (user,)
    )
    return [
        *map(_folder_state, folders),
        *(SubscriptionState(*row)._replace(subscribed=bool(row[2])) for row in subscriptions),
        *(AnnotationState(*row) for row in annotations),
    ]
