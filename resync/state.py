"""A mailbox's whole state as values, and what an entry makes of it: the rule that the node's database follows too.

Used where a state is needed that the database does not show: the other branch of a fork is rebuilt here from the
log. An entry that no node can have numbered on the state before it makes the branch worthless, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.values import Dot, UidSet
from resync import row as rows
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel, Merge
from resync.row import Row

Placement: TypeAlias = tuple[Dot, int]
"""The entry that added a message, and which of its changes did."""


class ContradictionError(Exception):
    """The entry cannot stand on the state that it names as its predecessor's."""


def placement(row: Row) -> Placement:
    """What the row is about."""
    return row.dot, row.change


@dataclass(slots=True)
class MailboxState:
    """A mailbox as of one point in its history. `rows` by UID."""

    uidnext: int = 1
    modseq: int = 0
    context: dict[str, int] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)

    def has_seen(self, dot: Dot) -> bool:
        """Whether the entry is part of this state's history."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def apply(self, entry: Entry) -> None:
        """Step to the entry, which stands on this state. Raises ContradictionError, and then the state is void."""
        if len(entry.predecessors) < 2 and entry.modseq != self.modseq + 1:
            raise ContradictionError(f"{entry.dot} has MODSEQ {entry.modseq} on {self.modseq}")
        for number, change in enumerate(entry.changes):
            match change:
                case MailAdd(uid) if uid != self.uidnext:
                    raise ContradictionError(f"{entry.dot} gives UID {uid} at UIDNEXT {self.uidnext}")
                case MailAdd():
                    flags = rows.set_flags({}, change.flags, entry.stamp, value=True)
                    self._put(
                        Row(
                            change.uid, entry.dot, number, change.guid, entry.dot, entry.modseq, flags,
                            change.received_ms, change.size_bytes, change.content_hash,
                        )
                    )  # fmt: skip
                    self.uidnext = max(self.uidnext, change.uid + 1)
                case MailDel(uids):
                    for uid in self._present(uids):
                        del self.rows[uid]
                case FlagAdd(uids, flags) | FlagDel(uids, flags):
                    for uid in self._present(uids):
                        before = self.rows[uid]
                        states = rows.set_flags(before.flags, flags, entry.stamp, value=isinstance(change, FlagAdd))
                        self._put(before._replace(flags=states, modseq=entry.modseq))
                case Merge():
                    self._merge(change)
                case _:
                    raise AssertionError(f"{type(change).__name__} does not change a mailbox")
        self.modseq = entry.modseq
        self.context[entry.dot.origin] = entry.dot.seq

    def _present(self, uids: UidSet) -> list[int]:
        if len(uids) > len(self.rows):
            raise ContradictionError(f"{len(uids)} UIDs are named where there are {len(self.rows)}")
        found = [uid for uid in uids if uid in self.rows]
        if len(found) != len(uids):
            raise ContradictionError("a UID is named that is not there")
        return found

    def _merge(self, merge: Merge) -> None:
        seen = {dot.origin: dot.seq for dot in merge.context}
        if merge.uidnext < self.uidnext or any(seen.get(origin, 0) < seq for origin, seq in self.context.items()):
            raise ContradictionError("a merge lacks what was there before it")
        gone = {row.guid for row in merge.rows} | set(merge.removed)
        self.rows = {uid: row for uid, row in self.rows.items() if row.guid not in gone}
        for row in merge.rows:
            self._put(row)
        self.uidnext = merge.uidnext
        self.context = seen

    def _put(self, row: Row) -> None:
        self.rows[row.uid] = row


def replay(entries: Iterable[Entry]) -> MailboxState:
    """The state at the end of a path through the history, from a mailbox's first entry on."""
    state = MailboxState()
    for entry in entries:
        state.apply(entry)
    return state
