"""The state that a node shows, checked against the promises of design section 3 at every commit.

The watch outlives the runs of the node, because what a client was shown before a crash binds the node after it. It
begins anew only where the disk was lost, or went back to an older copy.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.values import Dot
from replicator.mail.view import Message, ViewChange
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.rows.message_rows import message_of
from replicator.store.db.transaction import Commit
from resync.entry import Entry, MailAdd, Merge
from tests.simulation.records.history import History, Placement


def placements_of(message: Message) -> tuple[Placement, ...]:
    return (message.dot, message.change), *message.also


def uidvalidity_of(connection: sqlite3.Connection, mailbox_id: bytes) -> int:
    """Return the UIDVALIDITY that clients see: the higher one of the folder and of its mailbox's chain."""
    chain = chains.load(connection, mailbox_id)
    return max(queries.uidvalidity(connection, mailbox_id) or 0, chain.uidvalidity if chain else 0)


@dataclass
class Shown:
    """A mailbox under one UIDVALIDITY."""

    uidvalidity: int
    uidnext: int = 1
    modseq: int = 0
    rows: dict[int, Message] = field(default_factory=dict)
    guids: Counter[bytes] = field(default_factory=Counter)  # of the rows; no count is 0

    @classmethod
    def read(cls, connection: sqlite3.Connection, mailbox_id: bytes) -> Shown:
        chain = chains.load(connection, mailbox_id)
        shown = cls(uidvalidity_of(connection, mailbox_id))
        if chain is not None:
            shown.uidnext, shown.modseq = chain.uidnext, chain.highestmodseq
            shown.rows = {row.uid: message_of(row) for row in queries.mailbox_rows(connection, mailbox_id)}
            shown.guids.update(message.guid for message in shown.rows.values())
        return shown

    def apply(self, change: ViewChange) -> None:
        """Take over a change that the node shows now."""
        for uid in (*change.expunged, *(message.uid for message in change.changed)):
            if (before := self.rows.pop(uid, None)) is not None:
                self.guids[before.guid] -= 1
                if not self.guids[before.guid]:
                    del self.guids[before.guid]
        self.rows.update((message.uid, message) for message in change.changed)
        self.guids.update(message.guid for message in change.changed)
        self.uidnext, self.modseq = change.uidnext, change.modseq


class Watch:
    """The watch of one machine. `note` is a listener of the store of its present run."""

    def __init__(self, sid: str, history: History) -> None:
        self._sid = sid
        self._history = history
        self._origin = ""
        self._connection: sqlite3.Connection | None = None
        self._reset()

    def _reset(self) -> None:
        self._shown: dict[bytes, Shown] = {}
        self._named: dict[tuple[bytes, int, int], bytes] = {}  # mailbox, UIDVALIDITY, UID -> GUID
        self._gone: set[tuple[bytes, Placement]] = set()

    def disk_replaced(self, context: Mapping[str, int]) -> None:
        """Note that the next run of the node begins with a disk that holds this context, and no more."""
        self._reset()
        self._origin = ""
        self._history.disk_replaced(self._sid, context)

    def begin(self, connection: sqlite3.Connection, origin: str) -> None:
        """Note that a run of the node begins with this database."""
        self._note_unpublished(connection)
        self._connection, self._origin = connection, origin
        self._history.disk_is(self._sid, queries.log_context(connection))
        for mailbox_id in self._mailboxes(connection):
            now = Shown.read(connection, mailbox_id)
            before = self._shown.get(mailbox_id)
            if before is not None and before.uidvalidity == now.uidvalidity:
                self._check_step(mailbox_id, before, now)
            self._shown[mailbox_id] = now
            for message in now.rows.values():
                self._note_uid(mailbox_id, now.uidvalidity, message, None)
        missing = set(self._shown) - set(self._mailboxes(connection))
        assert not missing, f"{self._sid} showed mailboxes that are not on its disk"

    def _note_unpublished(self, connection: sqlite3.Connection) -> None:
        """Note entries that were numbered and synced as the power went, before any observer heard of them."""
        placements: dict[bytes, dict[int, tuple[Placement, ...]]] = {}
        rows = connection.execute("SELECT seq, body FROM log WHERE origin = ? ORDER BY seq", (self._origin,))
        for seq, body in rows.fetchall():
            dot = Dot(self._origin, seq)
            if dot in self._history.entries:
                continue
            entry = Entry.unpack(dot, body)
            shown = self._shown.get(entry.mailbox_id, Shown(0))
            known = placements.setdefault(
                entry.mailbox_id, {uid: placements_of(message) for uid, message in shown.rows.items()}
            )
            for number, change in enumerate(entry.changes):
                if isinstance(change, MailAdd):
                    known[change.uid] = ((dot, number),)
                elif isinstance(change, Merge):
                    known |= {row.uid: row.placements() for row in change.rows}
            self._history.numbered(entry, known)
            self._history.on_disk(self._sid, entry)

    def note(self, commit: Commit) -> None:
        """See `Store.listeners`."""
        assert self._connection is not None
        for item in commit.logged:
            self._history.on_disk(self._sid, item.entry)
        self._history.passed_over(self._sid, commit.context)
        self._history.mismatches += len(commit.mismatched)
        self._history.abandons(self._sid, commit.abandoned)
        self._history.revives(commit.revived)
        changes = iter(commit.changes)
        for entry in commit.applied:
            if entry.is_tree:
                if entry.dot.origin == self._origin:
                    self._history.numbered(entry, {})
                continue
            self._apply(self._connection, entry, next(changes))
        assert next(changes, None) is None, "one change of a view for each entry"
        for mailbox_id in commit.retired:
            shown = self._shown.get(mailbox_id)
            if shown is not None and shown.uidvalidity != uidvalidity_of(self._connection, mailbox_id):
                assert shown.uidvalidity < uidvalidity_of(self._connection, mailbox_id), "a UIDVALIDITY was lowered"
                self._shown[mailbox_id] = Shown.read(self._connection, mailbox_id)

    def _apply(self, connection: sqlite3.Connection, entry: Entry, change: ViewChange) -> None:
        assert change.head == entry.dot
        mailbox_id = change.mailbox_id
        shown = self._shown.get(mailbox_id)
        if shown is None:
            shown = self._shown[mailbox_id] = Shown(uidvalidity_of(connection, mailbox_id))
        if entry.dot.origin == self._origin:
            placements = {uid: placements_of(message) for uid, message in shown.rows.items()}
            self._history.numbered(entry, placements)
        self._check_change(shown, change)
        touched = {*change.expunged, *(message.uid for message in change.changed)}
        left = [one for uid in touched if uid in shown.rows for one in placements_of(shown.rows[uid])]
        here = {one for message in change.changed for one in placements_of(message)}
        self._gone |= {(mailbox_id, placement) for placement in left if placement not in here}
        for message in change.changed:
            back = [one for one in placements_of(message) if (mailbox_id, one) in self._gone]
            assert not back, "an expunged message came back"
            self._note_uid(mailbox_id, shown.uidvalidity, message, change)
        shown.apply(change)
        assert len(shown.guids) == len(shown.rows), "P5: a GUID is in a mailbox twice"

    def _check_change(self, shown: Shown, change: ViewChange) -> None:
        assert change.modseq > shown.modseq, "P4: a MODSEQ was shown twice"
        assert change.uidnext >= shown.uidnext, "a UIDNEXT was lowered"
        assert [*change.changed] == sorted(change.changed), "sessions are told of new UIDs in ascending order"
        for message in change.changed:
            before = shown.rows.get(message.uid)
            if before is not None and before.guid == message.guid:
                gained = {*placements_of(message)} - {*placements_of(before)}
                assert not gained, f"UID {message.uid} gained {gained}"
            else:
                assert message.uid >= shown.uidnext, "P2: a message appeared below a UIDNEXT that was shown"
            assert message.uid < change.uidnext, "a UID at or above UIDNEXT"
            if before is None or before.flags != message.flags:
                assert message.modseq > shown.modseq, "P4: a change appeared at a MODSEQ that was shown"

    def _check_step(self, mailbox_id: bytes, before: Shown, now: Shown) -> None:
        """Check that a restarted node shows what it showed, perhaps with what it was about to show."""
        expunged = tuple(sorted(before.rows.keys() - now.rows.keys()))
        changed = tuple(message for uid, message in now.rows.items() if before.rows.get(uid) != message)
        if now.modseq == before.modseq:
            assert not expunged, f"{self._sid} shows less than before its end"
            assert not changed, f"{self._sid} shows something else than before its end"
            assert now.uidnext == before.uidnext
        else:
            self._check_change(before, ViewChange(mailbox_id, now.modseq, now.uidnext, changed, expunged))

    def _note_uid(self, mailbox_id: bytes, uidvalidity: int, message: Message, change: ViewChange | None) -> None:
        key = mailbox_id, uidvalidity, message.uid
        assert self._named.setdefault(key, message.guid) == message.guid, "P1: a UID named two messages"
        if change is not None and change.head is not None:
            self._history.shown[key].add((message.guid, change.head))

    @staticmethod
    def _mailboxes(connection: sqlite3.Connection) -> list[bytes]:
        return [chain.id for chain in queries.chains_of(connection, None) if chain.uidvalidity]
