"""Stray mail: messages in deleted folders, which belong in the folder that now has the name."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from protocol.values import Dot
from replicator.store.db import queries
from replicator.store.db.entry_validation import NUMBER_MAX
from replicator.store.db.queries import MailboxKey
from resync.clock import COUNTER_BITS
from resync.row import Row


@dataclass(frozen=True, slots=True)
class StrayMail:
    """Mail in a deleted folder whose name another folder now has; the mail belongs in that one.

    A message may be expunged here if it came to the destination later than here. If it was there before, another node
    may have moved it from there to here, for which that folder was the deleted one, and has expunged it there. So each
    message keeps its latest placement, whichever nodes move it at once, and in whichever directions.
    """

    source: MailboxKey
    destination: MailboxKey
    to_copy: tuple[tuple[int, bytes], ...]  # UID and GUID of messages that the destination lacks
    to_copy_anew: tuple[tuple[int, bytes], ...]  # the same, of those that it may be about to lose
    to_expunge: tuple[tuple[int, bytes], ...]  # the same, of those that came there later
    head: Dot | None  # the source's head, as of which the UIDs hold


def users_with_strays(connection: sqlite3.Connection) -> list[str]:
    """Return all users for whom `strays` may find something."""
    rows = connection.execute(
        "SELECT DISTINCT f.user FROM folder f JOIN chain c ON c.id = f.mailbox_id AND c.messages > 0"
        " WHERE f.deleted = 1 ORDER BY f.user"
    )
    return [user for (user,) in rows]


def stray_folder_count(connection: sqlite3.Connection) -> int:
    """Return the number of folders, of all users, whose mail is to move to another folder of their name."""
    return sum(len(_stray_folders(connection, user)) for user in users_with_strays(connection))


def strays(connection: sqlite3.Connection, user: str) -> list[StrayMail]:
    """Return the mail left in a user's folders that were united with another, or deleted while mail arrived."""
    return [_stray(connection, source, destination) for source, destination in _stray_folders(connection, user)]


def _stray_folders(connection: sqlite3.Connection, user: str) -> list[tuple[MailboxKey, MailboxKey]]:
    """Return the user's folders that hold stray mail, each with the folder where the mail belongs."""
    by_name: dict[str, list[MailboxKey]] = {}
    for record in queries.folders_beside_strays(connection, user):
        by_name.setdefault(record.name, []).append(record.key(user))
    return [(source, destination) for *gone, destination in by_name.values() for source in gone]


def _stray(connection: sqlite3.Connection, source: MailboxKey, destination: MailboxKey) -> StrayMail:
    chain, lying = queries.rows(connection, source.mailbox_id)
    lacking, anew, done = list[Row](), list[Row](), list[Row]()
    for row in lying:
        held = queries.row_of_guid(connection, row.guid, destination.mailbox_id)
        if held is None:
            lacking.append(row)
        elif _came_at_least(connection, held) > _came_at_most(connection, row):
            done.append(row)
        else:
            anew.append(row)
    to_copy, to_copy_anew, to_expunge = (tuple((row.uid, row.guid) for row in rows) for rows in (lacking, anew, done))
    return StrayMail(source, destination, to_copy, to_copy_anew, to_expunge, chain.head if chain else None)


def _came_at_least(connection: sqlite3.Connection, row: Row) -> int:
    """Return the time of the latest placement's stamp, or one before, where the log does not tell it."""
    times = [time for dot, _ in row.placements() if (time := queries.stamp_time(connection, dot)) is not None]
    return max(times, default=(row.saved_ms or 0) << COUNTER_BITS)


def _came_at_most(connection: sqlite3.Connection, row: Row) -> int:
    """Return the time of the latest placement's stamp, or one after, where the log does not tell it."""
    times = [queries.stamp_time(connection, dot) for dot, _ in row.placements()]
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        return max(known)
    return NUMBER_MAX if row.saved_ms is None or row.also else max([*known, (row.saved_ms + 1) << COUNTER_BITS])
