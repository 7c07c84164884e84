"""What a node may show that has lost its disk, or has an older copy of it, and reaches others: no mailbox without mail
that all other nodes showed when it came back.

Its clients have it in their caches under the UIDVALIDITY that the mailbox still has, and would drop it.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from replicator.view import MailboxView, Message

Shown = set[tuple[bytes, bytes]]
"""Mailbox id and GUID of each message."""


class ComingBack:
    """`others`: the databases of all nodes but one; None where one of them does not run."""

    def __init__(self, others: Callable[[str], Sequence[sqlite3.Connection] | None]) -> None:
        self._others = others
        self._due: dict[str, Shown] = {}
        self._unwanted: dict[bytes, set[bytes]] = defaultdict(set)  # by mailbox: that clients have asked to expunge
        self.checked = 0

    def disk_lost(self) -> None:
        """Another node may be the only one that had something: what is due to come back is not known any more."""
        self._due.clear()

    def begins(self, sid: str) -> None:
        """The node starts with an empty disk, or an older copy of its own."""
        others = self._others(sid)
        if others:
            self._due[sid] = set.intersection(*map(_shown, others))

    def expunges(self, mailbox_id: bytes, messages: Iterable[Message]) -> None:
        """A client asks for this: who is asked may have done it before others hear of it."""
        self._unwanted[mailbox_id].update(message.guid for message in messages)

    def check(self, sid: str, view: MailboxView) -> None:
        """A client of the node selects the mailbox. What others do not show any more need not be there."""
        due = {guid for mailbox_id, guid in self._due.get(sid, ()) if mailbox_id == view.mailbox_id}
        due -= self._unwanted[view.mailbox_id]
        others = self._others(sid) if due else None
        if not others:
            return
        still = set.intersection(*map(_shown, others))
        due = {guid for guid in due if (view.mailbox_id, guid) in still}
        there = {message.guid for message in view.messages.values()}
        self.checked += bool(due)
        lacking = len(due - there)
        assert not lacking, f"{sid} has another disk, and shows {len(there)} mails of a mailbox without {lacking}"


def _shown(connection: sqlite3.Connection) -> Shown:
    """But for mailboxes that have forked, which may lose by a merge what this node has merged before others, and
    for deleted folders, whose mail goes elsewhere.
    """
    return set(
        connection.execute(
            "SELECT mailbox, guid FROM by_uid WHERE mailbox NOT IN (SELECT chain FROM log WHERE applied = 0)"
            " AND mailbox NOT IN (SELECT mailbox_id FROM folder WHERE deleted = 1)"
        )
    )
