"""A slow and simple replay of the log by its stamps alone, without chains, waiting entries and projections.

Stamps follow cause and effect, so an entry's predecessors come before it. An entry's state is the state of its
predecessor with the entry's changes.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.values import Dot, UidSet
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel, Merge, Raise
from resync.row import Row


@dataclass
class MailboxAtEntry:
    """The state of a mailbox at one entry. `rows` is by UID."""

    uidnext: int = 1
    risen: int = 0
    modseq: int = 0
    context: dict[str, int] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)

    def copy(self) -> "MailboxAtEntry":
        return MailboxAtEntry(self.uidnext, self.risen, self.modseq, dict(self.context), dict(self.rows))

    def step(self, entry: Entry) -> None:
        for number, change in enumerate(entry.changes):
            match change:
                case MailAdd():
                    flags = dict.fromkeys(change.flags, (*entry.stamp, True))
                    self.rows[change.uid] = Row(
                        change.uid, entry.dot, number, change.guid, entry.dot, entry.modseq, flags,
                        change.received_ms, change.size_bytes, change.content_hash,
                        saved_ms=entry.stamp.ms if entry.dated else None,
                    )  # fmt: skip
                    self.uidnext = change.uid + 1
                case MailDel(uids):
                    for uid in uids:
                        self.rows.pop(uid, None)
                case FlagAdd(uids, flags) | FlagDel(uids, flags):
                    self.flag(entry, uids, flags, value=isinstance(change, FlagAdd))
                case Raise(uidnext):
                    self.uidnext = uidnext
                case Merge():
                    gone = {*change.removed, *(row.guid for row in change.rows)}
                    self.rows = {uid: row for uid, row in self.rows.items() if row.guid not in gone}
                    self.rows |= {row.uid: row for row in change.rows}
                    self.uidnext, self.risen = change.uidnext, change.risen
                    self.context = {dot.origin: dot.seq for dot in change.context}
        self.modseq = entry.modseq
        self.context[entry.dot.origin] = entry.dot.seq

    def flag(self, entry: Entry, uids: UidSet, flags: Iterable[str], *, value: bool) -> None:
        for uid in filter(self.rows.__contains__, uids):
            states = {**self.rows[uid].flags, **dict.fromkeys(flags, (*entry.stamp, value))}
            self.rows[uid] = self.rows[uid]._replace(flags=states, modseq=entry.modseq)


def replay_by_stamps(entries: Iterable[Entry]) -> dict[Dot, MailboxAtEntry]:
    """Return the states of mailboxes at those entries that no other entry has as its first predecessor."""
    in_order = sorted(entries, key=lambda entry: (entry.time, entry.dot.sid, entry.dot.seq))
    followers = Counter(entry.predecessors[0] for entry in in_order if entry.predecessors)
    shown: dict[Dot, MailboxAtEntry] = {}
    for entry in in_order:
        if entry.is_tree:
            continue
        here = MailboxAtEntry()
        if entry.predecessors:
            before = entry.predecessors[0]
            followers[before] -= 1
            here = shown[before].copy() if followers[before] else shown.pop(before)
        here.step(entry)
        shown[entry.dot] = here
    return shown
