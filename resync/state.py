"""A mailbox's whole state as values, and the application of entries to it by the rules of the node's database.

The state is used where the database does not show the one that is needed: the other branch of a fork is rebuilt here
from the log. An entry that no node can have numbered on the state before it makes the branch worthless, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protocol.values import UID_MAX, Dot, UidSet, context_of
from resync import row as rows
from resync.entry import Entry, FlagAdd, FlagDel, MailAdd, MailDel, Merge, Raise
from resync.row import Row

MERGE_HEADROOM = 1 << 20  # UIDs that a merge, or a raise, must leave free, if they are not used up already
RAISED_MODSEQ_MAX = 1 << 39  # by a raise: a node that has nothing yet takes over no state above twice that
RISEN_MAX = (1 << 10) - 1  # merges raise a UIDVALIDITY no further: those of a user's folders are farther apart


class ContradictionError(Exception):
    """The entry cannot stand on the state that it names as its predecessor's."""


def joined(ours: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
    """Return the context of a state that has seen what two others have.

    On Spark: `spark.comparison.contexts.joined`.
    """
    return {origin: max(ours.get(origin, 0), theirs.get(origin, 0)) for origin in ours.keys() | theirs.keys()}


@dataclass(slots=True)
class MailboxState:
    """A mailbox at one point in its history. `rows` are by UID: change them by `put` and `take`.

    `risen`: amount by which merges have raised the mailbox's UIDVALIDITY above that of its folder in the tree.
    """

    uidnext: int = 1
    modseq: int = 0
    context: dict[str, int] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    risen: int = 0
    _uids: dict[bytes, int] = field(init=False, repr=False, compare=False)  # by GUID

    def __post_init__(self) -> None:
        self._uids = {row.guid: uid for uid, row in self.rows.items()}

    def has_seen(self, dot: Dot) -> bool:
        """Return True if the entry is part of this state's history. On Spark: `spark.comparison.contexts.has_seen`."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def put(self, row: Row) -> None:
        """Add the row, or replace its old version. No other row may have its UID or its GUID."""
        self.rows[row.uid] = row
        self._uids[row.guid] = row.uid

    def message(self, guid: bytes) -> Row | None:
        """Return the row of the message with this GUID, if there is one."""
        uid = self._uids.get(guid)
        return None if uid is None else self.rows[uid]

    def take(self, guid: bytes) -> None:
        """Remove the message with this GUID, if there is one."""
        if (uid := self._uids.pop(guid, None)) is not None:
            del self.rows[uid]

    def apply(self, entry: Entry) -> None:
        """Apply an entry that stands on this state. Raises ContradictionError, which leaves the state void."""
        self._check(entry)
        for number, change in enumerate(entry.changes):
            match change:
                case MailAdd():
                    self._add(entry, number, change)
                case MailDel(uids):
                    for uid in self._present(uids):
                        self.take(self.rows[uid].guid)
                case FlagAdd(uids, flags) | FlagDel(uids, flags):
                    for uid in self._present(uids):
                        before = self.rows[uid]
                        states = rows.set_flags(before.flags, flags, entry.stamp, value=isinstance(change, FlagAdd))
                        self.rows[uid] = before._replace(flags=states, modseq=entry.modseq)
                case Merge():
                    self._merge(change)
                case Raise(uidnext):
                    if wrong := why_not_raise(uidnext, self.uidnext):
                        raise ContradictionError(f"{entry.dot} has {wrong}")
                    self.uidnext = uidnext
                case _:
                    raise AssertionError(f"{type(change).__name__} does not change a mailbox")
        self.modseq = entry.modseq
        self.context[entry.dot.origin] = entry.dot.seq

    def _check(self, entry: Entry) -> None:
        if self.has_seen(entry.dot):
            raise ContradictionError(f"{entry.dot} builds on a state that has already seen it")
        if entry.modseq <= self.modseq or (entry.modseq > self.modseq + 1 and not entry.skips_modseqs):
            raise ContradictionError(f"{entry.dot} has MODSEQ {entry.modseq}, but the mailbox is at {self.modseq}")
        for change in entry.changes:
            if isinstance(change, Merge):
                wrong = why_not_merge(change, self, self.rows.get)
                if wrong:
                    raise ContradictionError(f"{entry.dot} has {wrong}")

    def _add(self, entry: Entry, number: int, add: MailAdd) -> None:
        if add.uid != self.uidnext:
            raise ContradictionError(f"{entry.dot} gives UID {add.uid} at UIDNEXT {self.uidnext}")
        if add.guid in self._uids:
            raise ContradictionError(f"{entry.dot} adds a GUID that the mailbox already holds")
        flags = rows.set_flags({}, add.flags, entry.stamp, value=True)
        self.put(
            Row(
                add.uid, entry.dot, number, add.guid, entry.dot, entry.modseq, flags,
                add.received_ms, add.size_bytes, add.content_hash, saved_ms=entry.saved_ms,
            )
        )  # fmt: skip
        self.uidnext = add.uid + 1

    def _present(self, uids: UidSet) -> list[int]:
        if len(uids) > len(self.rows):
            raise ContradictionError(f"an entry names {len(uids)} UIDs, but there are only {len(self.rows)}")
        found = [uid for uid in uids if uid in self.rows]
        if len(found) != len(uids):
            raise ContradictionError("an entry names a UID that does not exist")
        return found

    def _merge(self, merge: Merge) -> None:
        for guid in (*(row.guid for row in merge.rows), *merge.removed):
            self.take(guid)
        for row in merge.rows:
            self.put(row)
        self.uidnext, self.risen = merge.uidnext, merge.risen
        self.context = context_of(merge.context)


def why_not_raise(uidnext: int, shown: int) -> str | None:
    """Return the reason why UIDNEXT cannot be raised to this where `shown` is the present one, or None if it can."""
    if uidnext < shown:
        return "a UIDNEXT below one that was already shown"
    if uidnext > UID_MAX - MERGE_HEADROOM and uidnext > shown:
        return "a UIDNEXT that leaves no UIDs"
    return None


class Head(Protocol):
    """Numbers of a head with which a merge is compared."""

    uidnext: int
    risen: int
    context: dict[str, int]


def why_not_merge(merge: Merge, head: Head, row_at: Callable[[int], Row | None]) -> str | None:
    """Return the reason why a merge is invalid where one of the heads that it joins shows this, or None if it is valid.

    No number may go back, and a UID that this head has shown or promised must still name the same message (design
    section 3).
    """
    seen = context_of(merge.context)
    if merge.uidnext < head.uidnext:
        return "a UIDNEXT below one that was already shown"
    if merge.uidnext > UID_MAX - MERGE_HEADROOM > head.uidnext:
        return "a UIDNEXT that leaves no UIDs"
    if merge.risen < head.risen:
        return "a UIDVALIDITY below one that was already shown"
    if any(seen.get(origin, 0) < seq for origin, seq in head.context.items()):
        return "a context that lacks entries of this mailbox"
    for row in merge.rows:
        here = row_at(row.uid)
        if here is None and row.uid < head.uidnext:
            return "a message at a UID below UIDNEXT"
        if here is not None and here.guid != row.guid:
            return "another message's UID"
        if here is not None and not set(row.placements()) <= set(here.placements()):
            return "a UID with a placement that it has not shown"
    return None
