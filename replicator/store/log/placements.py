"""Lookup of messages by GUID and placement, since a merge may change their UIDs (design section 2, "placement")."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from protocol.values import Dot
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from resync.entry import MailAdd
from resync.row import Placement


class MessageTarget(NamedTuple):
    """A message that a request refers to: its UID as of some head, its GUID, and its placements."""

    uid: int
    guid: bytes
    dot: Dot
    change: int
    also: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The messages found in a mailbox at one moment.

    `by_guid` holds those present; `chain` is None if it never had mail.
    """

    chain: Chain | None
    uidvalidity: int | None  # of the folder, if its tree is here
    by_guid: dict[bytes, MessageTarget]

    def has_seen(self, dots: Iterable[Dot]) -> bool:
        """Return True if all of these entries are part of what the mailbox shows."""
        return all(self.chain is not None and self.chain.has_seen(dot) for dot in dots)


def find(connection: sqlite3.Connection, mailbox_id: bytes, guids: Iterable[bytes]) -> Whereabouts:
    """Find messages of a mailbox by their GUIDs."""
    connection.execute("BEGIN")
    try:
        rows = [row for guid in guids if (row := queries.row_of_guid(connection, guid, mailbox_id)) is not None]
        return Whereabouts(
            chains.load(connection, mailbox_id),
            queries.uidvalidity(connection, mailbox_id),
            {row.guid: MessageTarget(row.uid, row.guid, row.dot, row.change, row.also) for row in rows},
        )
    finally:
        connection.execute("COMMIT")


def added_by(connection: sqlite3.Connection, dots: Iterable[Dot]) -> list[MessageTarget]:
    """Return the messages that these entries added, with the UIDs assigned there; entries not here add none."""
    entries = (entry for dot in dots if (entry := queries.entry_at(connection, dot)) is not None)
    return [
        MessageTarget(change.uid, change.guid, entry.dot, number)
        for entry in entries
        for number, change in enumerate(entry.changes)
        if isinstance(change, MailAdd)
    ]
