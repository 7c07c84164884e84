"""The gaps of a client's cache: rules of QRESYNC without a memory of expunged messages (RFC 7162 section 5.1). Pure.

A node remembers no UIDs of expunged messages. It compares what the client may know with what is there: that is right
whatever became of the mailbox since, at this node or another one. A merge that renumbers messages, a rebuilt node and
another branch need no rules of their own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from protocol.values import UID_MAX, UidSet
from replicator.imap.wire.commands.command_types import MatchData


def believed_modseq(told: int, highestmodseq: int) -> int:
    """Return the MODSEQ from which on the client must hear of changes, if it was `told` this one by any node.

    A MODSEQ above this node's is one of a node that shows changes which are not here, perhaps instead of others that
    are: then the client hears of every message.
    """
    return heard_modseq(told) if told <= highestmodseq else 0


def heard_modseq(told: int) -> int:
    """Return the MODSEQ up to which a client that was `told` this one has heard of all changes.

    An empty mailbox tells 1, since 0 would mean that it has no MODSEQs (RFC 7162 section 3.1.7). The first message has
    that MODSEQ, too, and the client has not heard of it.
    """
    return told if told > 1 else 0


def vanished(known: UidSet, present: Sequence[int]) -> UidSet:
    """Return the UIDs of `known` that are not `present`, which must ascend."""
    gaps: list[tuple[int, int]] = []
    for low, high in known.ranges:
        start = low
        for position in range(bisect_left(present, low), bisect_right(present, high)):
            uid = present[position]
            if start < uid:
                gaps.append((start, uid - 1))
            start = uid + 1
        if start <= high:
            gaps.append((start, high))
    return UidSet(tuple(gaps))


def known_up_to(sample: MatchData, present: Sequence[int]) -> int:
    """Return the UID up to which the client has missed no expunge (RFC 7162 section 3.2.5.2), or 0.

    If a sequence number still has the UID that the client knows for it, then as many messages lie below it as the
    client knows there, and no others can: new messages have higher UIDs.
    """
    highest = 0
    for number, uid, count in _runs(sample):
        if number > len(present):
            break
        # Within a run numbers and UIDs rise by one, and the UIDs that are present by one at least.
        shift = uid - number
        low, high = number, min(number + count - 1, len(present))
        while low < high:  # find the last number whose UID is not above the one that the client knows
            middle = (low + high + 1) // 2
            if present[middle - 1] - middle <= shift:
                low = middle
            else:
                high = middle - 1
        if present[low - 1] - low == shift:
            highest = present[low - 1]
    return highest


def _runs(sample: MatchData) -> Iterator[tuple[int, int, int]]:
    """Yield (first sequence number, its UID, how many numbers and UIDs follow each other without a gap)."""
    numbers, uids = iter(sample.numbers.ranges), iter(sample.uids.ranges)
    number, last_number = next(numbers, (1, 0))
    uid, last_uid = next(uids, (1, 0))
    while number <= last_number and uid <= last_uid:
        count = min(last_number - number, last_uid - uid) + 1
        yield number, uid, count
        number, uid = number + count, uid + count
        if number > last_number:
            number, last_number = next(numbers, (1, 0))
        if uid > last_uid:
            uid, last_uid = next(uids, (1, 0))


def between(uids: UidSet, first: int, last: int) -> UidSet:
    """Return the UIDs from `first` to `last`; none if `last` is the smaller one."""
    ranges = uids.ranges if first <= last else ()
    start = max(0, bisect_right(ranges, (first, UID_MAX)) - 1)
    some = ranges[start : bisect_right(ranges, (last, UID_MAX), start)]
    return UidSet(tuple((max(low, first), min(high, last)) for low, high in some if high >= first))
