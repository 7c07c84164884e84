"""Check of nodes that have lost their disk, or have an older copy of it, and reach other nodes.

Such a node must not show a mailbox without mail that all other nodes showed when it came back. Its clients have that
mail in their caches under the UIDVALIDITY that the mailbox still has, and would drop it.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from replicator.mail.view import MailboxView, Message

Shown = set[tuple[bytes, bytes]]
"""Mailbox id and GUID of each message."""


class RejoinCheck:
    """The check of all nodes. `others`: returns the databases of all nodes but one, or None if any of them is down."""

    def __init__(self, others: Callable[[str], Sequence[sqlite3.Connection] | None]) -> None:
        self._others = others
        self._due: dict[str, Shown] = {}
        self._unwanted: dict[bytes, set[bytes]] = defaultdict(set)  # mailbox -> GUIDs asked to be expunged
        self.checked = 0  # number of mailboxes in which mail was due

    def disk_lost(self) -> None:
        """Forget what is due to come back: another node with a lost disk may have been the only one that had it."""
        self._due.clear()

    def begins(self, sid: str) -> None:
        """Note that the node starts with an empty disk, or with an older copy of its own."""
        others = self._others(sid)
        if others:
            self._due[sid] = set.intersection(*map(_shown, others))

    def expunges(self, mailbox_id: bytes, messages: Iterable[Message]) -> None:
        """Note that a client asks to expunge these: the node that it asks may do so before other nodes hear of it."""
        self._unwanted[mailbox_id].update(message.guid for message in messages)

    def check(self, sid: str, view: MailboxView) -> None:
        """Check a mailbox that a client of the node selects. Mail that other nodes no longer show need not be there."""
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
    """Return the messages shown, without those of mailboxes that may rightly lose some.

    Forked mailboxes may lose by a merge what this node has merged before others, and the mail of deleted folders moves
    away.
    """
    return set(
        connection.execute(
            "SELECT mailbox, guid FROM by_uid WHERE mailbox NOT IN (SELECT chain FROM log WHERE applied = 0)"
            " AND mailbox NOT IN (SELECT mailbox_id FROM folder WHERE deleted = 1)"
        )
    )
