"""Sequence numbers as one client knows them (RFC 3501 section 2.3.1.2). Pure.

A client counts the messages announced to it, so the UIDs here are the announced ones, in order, however the mailbox has
changed meanwhile. They change only when an EXPUNGE or EXISTS is written.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from protocol.values import UidSet
from replicator.imap.wire.sequence_set import SequenceSet


class Numbering:
    r"""The announced UIDs, ascending, and which of them are `\Recent` in this session."""

    def __init__(self, uids: array[int] | None = None) -> None:
        """`uids`: those that are announced at first. Others may read the array, which stays as it is."""
        self._uids = array("I") if uids is None else uids  # UIDs have 32 bits
        self._is_own = uids is None
        self._recent = UidSet()

    def __len__(self) -> int:
        return len(self._uids)

    @property
    def uids(self) -> Sequence[int]:
        """All announced UIDs, ascending: the UID of sequence number n is at index n - 1."""
        return self._uids

    @property
    def last(self) -> int:
        """The highest announced UID, 0 if there is none."""
        return self._uids[-1] if self._uids else 0

    @property
    def recent(self) -> UidSet:
        r"""UIDs that are `\Recent` in this session; may include UIDs without a message."""
        return self._recent

    @property
    def recent_count(self) -> int:
        r"""Number of announced messages that are `\Recent`."""
        return sum(bisect_right(self._uids, high) - bisect_left(self._uids, low) for low, high in self._recent.ranges)

    def number(self, uid: int) -> int | None:
        """Return the sequence number of a UID, or None if it was not announced."""
        position = bisect_left(self._uids, uid)
        return position + 1 if position < len(self._uids) and self._uids[position] == uid else None

    def numbers_of(self, uids: Sequence[int]) -> Sequence[int]:
        """Return the sequence numbers of these announced UIDs, ascending and not empty."""
        first, last = bisect_left(self._uids, uids[0]), bisect_left(self._uids, uids[-1])
        if last - first == len(uids) - 1:
            return range(first + 1, last + 2)  # no message lies between two of them
        return [bisect_left(self._uids, uid, first, last) + 1 for uid in uids]

    def numbers(self, uids: Iterable[int]) -> list[int]:
        """Return the sequence numbers of those UIDs that were announced, ascending."""
        return [number for uid in sorted(uids) if (number := self.number(uid)) is not None]

    def resolve(self, numbers: SequenceSet, *, by_uid: bool) -> list[range] | None:
        """Return the sequence numbers that a client means, as ascending runs, valid until the next announcement.

        UIDs without a message are left out (RFC 3501 section 6.4.8), and so is `*` in an empty mailbox. Returns None if
        a sequence number is beyond the last: the client is wrong about the mailbox, and the command must not act on
        part of its messages.
        """
        if by_uid:
            return self.within(numbers.resolve(self.last))
        if not self._uids and all(None in ends for ends in numbers.ranges):
            return []
        ranges = numbers.resolve(len(self._uids)).ranges
        if ranges and not 1 <= ranges[0][0] <= ranges[-1][1] <= len(self._uids):
            return None
        return [range(low, high + 1) for low, high in ranges]

    def runs_of(self, uids: Iterable[int]) -> list[range]:
        """Return the sequence numbers of those UIDs that were announced, as ascending runs."""
        return [range(low, high + 1) for low, high in UidSet.of(self.numbers(uids)).ranges]

    def within(self, uids: UidSet) -> list[range]:
        """Return the sequence numbers of the messages with these UIDs, as ascending runs."""
        ends = ((bisect_left(self._uids, low), bisect_right(self._uids, high)) for low, high in uids.ranges)
        return [range(start + 1, stop + 1) for start, stop in ends]

    def uids_of(self, runs: Iterable[range]) -> Sequence[int]:
        """Return the UIDs of the messages of these runs."""
        found = array("I")
        for run in runs:
            found += self._uids[run.start - 1 : run.stop - 1]
        return found

    def pairs(self, runs: Iterable[Iterable[int]]) -> Iterator[tuple[int, int]]:
        """Return (sequence number, UID) of each message of these runs."""
        return ((number, self._uids[number - 1]) for run in runs for number in run)

    def expunge(self, uids: Iterable[int]) -> list[int]:
        """Remove these UIDs. Return the sequence numbers to announce, highest first, so that none shifts another."""
        gone = [number for uid in uids if (number := self.number(uid)) is not None]
        gone.sort(reverse=True)
        if gone:
            kept, start = array("I"), 0
            for number in reversed(gone):
                kept += self._uids[start : number - 1]
                start = number
            self._uids, self._is_own = kept + self._uids[start:], True
        return gone

    def append(self, uids: Iterable[int]) -> bool:
        """Add new UIDs, ascending. Return False if there were none."""
        new = array("I", uids)
        if not new:
            return False
        assert new[0] > self.last, "a UID below one that was announced before it"  # design section 3
        if not self._is_own:
            self._uids, self._is_own = self._uids[:], True
        self._uids.extend(new)
        return True

    def mark_recent(self, first: int, last: int) -> None:
        r"""Mark the announced messages from UID `first` to UID `last` as `\Recent`."""
        if first <= last:
            self._recent = UidSet.of_ranges((*self._recent.ranges, (first, last)))
