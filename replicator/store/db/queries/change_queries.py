"""Queries on what the database remembers of changes (`replicator.mail.last_changes`)."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from hashlib import blake2b
from typing import cast

from protocol.values import UID_MAX, UidSet
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.last_changes import (
    AnnotationChange,
    FlagChange,
    FolderChange,
    LastChange,
    Purge,
    SubscriptionChange,
    TreeChanges,
)
from replicator.mail.mailstore import INBOX, Folder
from replicator.mail.scratch import Scratch
from replicator.store.db.queries.folder_queries import (
    SHOWN_UIDVALIDITY,
    end_of,
    folder_by_id,
    had_annotations,
)
from replicator.store.db.rows.message_rows import DamagedRowError, unpacked_map
from resync.entry import ID_BYTES, NOWHERE, tree_id
from resync.folder_tree import UNITED
from resync.node_annotations import FOREIGN_GUID, OWN, PURGED, UNDER_WAY, holder_of, uid_in

COUNTER_BITS = 16
"""Bits of a stamp's time below its milliseconds (`protocol.values.Stamp`)."""

HEAD = "COALESCE(c.head_origin || ':' || c.head_seq, '')"
"""The newest entry of the row `c` of a chain."""

_ANNOTATED = f"SELECT mailbox_id, MAX(time) FROM annotation WHERE user = ? AND substr(name, 1, {len(OWN)}) <> '{OWN}'"
"""Query for clients' last change to an annotation: its folder and its time."""


def tree_changes(connection: sqlite3.Connection, user: str) -> TreeChanges:
    """Return all folders of a user, deleted ones included, and all subscriptions, in the order of their last change.

    A deleted folder that still shows mail counts as one that is not deleted. One that a merge has united with another
    one is not told, nor is one that a purge has removed: no user has deleted it.
    """
    purge = _purge(connection, user)
    found = connection.execute(
        f"SELECT f.name, f.mailbox_id, {SHOWN_UIDVALIDITY}, COALESCE(c.uidnext, 1),"
        f" f.deleted AND COALESCE(c.messages, 0) = 0, f.time, COALESCE(c.highestmodseq, 0), {HEAD},"
        f" f.deleted AND f.sid = '{UNITED}'"
        " FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id WHERE f.user = ?"
        " ORDER BY f.deleted DESC, f.time, f.sid, f.mailbox_id",
        (user,),
    )
    rows = [row for row in found if not (row[4] and _is_purged(purge, row[5]))]
    homes = {name: mailbox_id for name, mailbox_id, *_, is_united in rows if not is_united}  # a living one is the last
    united = {mailbox_id: homes.get(name) for name, mailbox_id, *_, is_united in rows if is_united}
    known = _holders(connection, user)
    holders = {guid: home for guid, holder in known.items() if (home := united.get(holder, holder)) is not None}
    guids = {home: guid for guid, home in holders.items()}  # of several, the one given last
    annotated = dict(connection.execute(f"{_ANNOTATED} GROUP BY mailbox_id", (user,)).fetchall())
    subscriptions = connection.execute(
        "SELECT name, subscribed, time FROM subscription WHERE user = ? ORDER BY time", (user,)
    )
    head = connection.execute(f"SELECT {HEAD} FROM chain c WHERE c.id = ?", (tree_id(user),)).fetchone()
    return TreeChanges(
        [
            FolderChange(
                name,
                mailbox_id,
                uidvalidity,
                uidnext,
                bool(deleted),
                time >> COUNTER_BITS,
                guids.get(mailbox_id) or (_other_id(mailbox_id) if mailbox_id in holders else mailbox_id),
                mailbox_id in guids and known[guids[mailbox_id]] != mailbox_id,
                modseq,
                newest,
                max(annotated.get(home, 0) for home in _homes(name, mailbox_id)),
            )
            for name, mailbox_id, uidvalidity, uidnext, deleted, time, modseq, newest, _ in rows
            if mailbox_id not in united
        ],
        [
            SubscriptionChange(name, bool(subscribed), time >> COUNTER_BITS)
            for name, subscribed, time in subscriptions
            if subscribed or not _is_purged(purge, time)
        ],
        head[0] if head is not None else "",
        purge,
    )


def _purge(connection: sqlite3.Connection, user: str) -> Purge | None:
    """Return the last purge of the user's mail. Raises DamagedRowError."""
    query = "SELECT value, time FROM annotation WHERE user = ? AND mailbox_id = ? AND name = ?"
    row = connection.execute(query, (user, NOWHERE, PURGED)).fetchone()
    if row is None or row[0] is None:
        return None
    value, time = row
    uidnext = uid_in(value)
    if uidnext is None and value != UNDER_WAY:
        raise DamagedRowError("the note of a purge", "cannot be read")
    return Purge(uidnext, time, time >> COUNTER_BITS)


def _is_purged(purge: Purge | None, time: int) -> bool:
    return purge is not None and purge.has_removed(time)


def _other_id(mailbox_id: bytes) -> bytes:
    """Return the GUID of a folder whose id is that of another one: a Dovecot took it to a node that lacked this one."""
    return blake2b(b"folder:" + mailbox_id, digest_size=ID_BYTES).digest()


def _holders(connection: sqlite3.Connection, user: str) -> dict[bytes, bytes]:
    """Return the folders that Dovecots know by GUIDs of theirs, in the order in which these were given."""
    rows = connection.execute(
        "SELECT name, value FROM annotation WHERE user = ? AND mailbox_id = ? AND value IS NOT NULL"
        " AND substr(name, 1, ?) = ? ORDER BY time, sid, name",
        (user, NOWHERE, len(FOREIGN_GUID), FOREIGN_GUID),
    )
    found = dict[bytes, bytes]()
    for name, value in rows:
        holder, guid = holder_of(value), name.removeprefix(FOREIGN_GUID)
        if holder is not None and len(guid) == 2 * ID_BYTES:
            found[bytes.fromhex(guid)] = holder
    return found


def folder_known_as(connection: sqlite3.Connection, user: str, guid: bytes, mailbox_id: bytes) -> Folder | None:
    """Return the user's visible folder of this id, if the GUID is the last that was given to it, or else its id.

    None also where `tree_changes` tells the GUID of the folder by other rules: for united folders, and ids given away.
    """
    last = connection.execute(
        "SELECT name FROM annotation WHERE user = ? AND mailbox_id = ? AND name >= ? AND name < ? AND value = ?"
        " ORDER BY time DESC, sid DESC, name DESC LIMIT 1",
        (user, NOWHERE, FOREIGN_GUID, end_of(FOREIGN_GUID), mailbox_id.hex().encode()),
    ).fetchone()
    own = FOREIGN_GUID + mailbox_id.hex()
    is_given_away = last is None and had_annotations(connection, user, NOWHERE, [own])
    if is_given_away or (own if last is None else last[0]) != FOREIGN_GUID + guid.hex():
        return None
    found = folder_by_id(connection, user, mailbox_id)
    return None if found is None else found.folder_of(user)


def last_change(connection: sqlite3.Connection, user: str, mailbox_id: bytes) -> LastChange | None:
    """Return what `tree_changes` tells of the last change in a folder; None if it does not tell of the folder."""
    row = connection.execute(
        f"SELECT f.name, {HEAD} FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id"
        f" WHERE f.mailbox_id = ? AND f.user = ? AND NOT (f.deleted AND f.sid = '{UNITED}')",
        (mailbox_id, user),
    ).fetchone()
    if row is None:
        return None
    name, head = row
    times = [connection.execute(f"{_ANNOTATED} AND mailbox_id = ?", (user, home)) for home in _homes(name, mailbox_id)]
    return LastChange(head, max(time or 0 for (_, time) in itertools.chain.from_iterable(times)))


def _homes(name: str, mailbox_id: bytes) -> tuple[bytes, ...]:
    """Return where the annotations of the folder of this name are."""
    return (mailbox_id, NOWHERE) if name == INBOX else (mailbox_id,)


def annotation_changes(connection: sqlite3.Connection, user: str, mailbox_id: bytes) -> list[AnnotationChange]:
    """Return the annotations that clients have set at a folder or, at `NOWHERE`, the account; removed ones included."""
    rows = connection.execute(
        f"SELECT name, value, time >> {COUNTER_BITS} FROM annotation WHERE user = ? AND mailbox_id = ?"
        f" AND substr(name, 1, {len(OWN)}) <> '{OWN}'",
        (user, mailbox_id),
    )
    return [AnnotationChange(*row) for row in rows]


def expunged_by_users(connection: sqlite3.Connection, folder: Folder, scratch: Scratch | None = None) -> GuidsByUid:
    """Return what `expunged` does, without messages that a purge removed. Raises as it does.

    In INBOX their UIDs tell: a node may have been away, and learn of a purge's expunges with times of its own.
    """
    purge = _purge(connection, folder.user)
    if purge is None:
        return expunged(connection, folder.mailbox_id, scratch)
    if purge.uidnext is None:
        return GuidsByUid(scratch=scratch)
    first = purge.uidnext if folder.name == INBOX else 1
    return expunged(connection, folder.mailbox_id, scratch, first, purge.changed_ms)


def expunged(
    connection: sqlite3.Connection,
    mailbox_id: bytes,
    scratch: Scratch | None = None,
    first: int = 1,
    after_ms: int = -1,
) -> GuidsByUid:
    """Return the GUIDs of messages of a mailbox that are remembered as expunged after a time, by UID, from one UID on.

    Raises DamagedRowError, DiskFullError, UnavailableError.
    """
    query = (
        "SELECT e.uid, e.guid, e.expunged_ms FROM expunged e WHERE e.mailbox = ?"
        " AND NOT EXISTS (SELECT 1 FROM by_uid b WHERE b.mailbox = e.mailbox AND b.uid = e.uid) ORDER BY e.uid, e.guid"
    )
    with closing(connection.execute(query, (mailbox_id,))) as gone:
        found = ((uid, guid) for uid, guid, at_ms in map(_expunged_from, gone) if uid >= first and at_ms > after_ms)
        return GuidsByUid(found, scratch)


def _expunged_from(columns: tuple[object, object, object]) -> tuple[int, bytes, int]:
    uid, guid, at_ms = columns
    if not (isinstance(uid, int) and 0 < uid <= UID_MAX and isinstance(guid, bytes) and len(guid) == ID_BYTES):
        raise DamagedRowError("the row of a message in retention", "cannot be read")
    if not isinstance(at_ms, int):
        raise DamagedRowError("the row of a message in retention", "cannot be read")
    return uid, guid, at_ms


def flag_changes(
    connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet, above: int
) -> dict[int, tuple[FlagChange, ...]]:
    """Return each flag's last change, by UID, of those of these messages that have a MODSEQ above this one."""
    query = "SELECT uid, flags FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ? AND modseq > ?"
    found = dict[int, tuple[FlagChange, ...]]()
    for low, high in uids.ranges:
        with closing(connection.execute(query, (mailbox_id, low, high, above))) as rows:
            found |= {uid: _flag_changes(flags) for uid, flags in rows}
    return found


def _flag_changes(packed: object) -> tuple[FlagChange, ...]:
    flags = cast("dict[str, tuple[int, str, bool]]", unpacked_map(packed, "a message's row"))
    return tuple(FlagChange(flag, is_set, time >> COUNTER_BITS) for flag, (time, _, is_set) in flags.items())
