"""Finding the messages of a view by their UIDs."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from protocol.values import UID_MAX, Dot, UidSet
from replicator.mail.view import MailboxView, Message
from replicator.runtime.environment import ThreadRunner

FOUND_AT_ONCE = 2000  # messages that the event loop finds; more are found in a thread

_RANGE = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}|\*))?")


class SeenMessages(NamedTuple):
    """Messages of one mailbox, in UID order, and the head at which a client has seen them.

    `uidvalidity` is that of the tree.
    """

    user: str
    mailbox_id: bytes
    uidvalidity: int
    head: Dot | None
    messages: list[Message]


async def seen(view: MailboxView, uids: UidSet, run_in_thread: ThreadRunner) -> SeenMessages:
    """Return those of these messages that the view shows as this is called."""
    head, found = view.head, [*islice(_found(view, uids), FOUND_AT_ONCE + 1)]
    if len(found) > FOUND_AT_ONCE:
        found = await run_in_thread(partial(_among, view.snapshot(), uids))
    return SeenMessages(view.user, view.mailbox_id, view.own or view.uidvalidity, head, found)


def parse_uids(text: str) -> UidSet:
    """Return the UIDs that a set such as `7,30:39,100:*` names. Raises ValueError.

    `100:*` are all from 100 on. Unlike IMAP's (RFC 3501 section 9, seq-range), it does not name the newest message if
    that has a UID below 100: what is removed by a set lies within its bounds.
    """
    ranges = [_range(part) for part in text.split(",")]
    return UidSet.of_ranges((min(one), max(one)) for one in ranges)


def _range(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is neither a UID nor a range of UIDs such as 30:39 or 100:*")
    first, last = int(found[1]), UID_MAX if found[2] == "*" else int(found[2] or found[1])
    if not (0 < first <= UID_MAX and 0 < last <= UID_MAX):
        raise ValueError(f"{text!r}: UIDs are numbers from 1 to {UID_MAX}")
    return first, last


def _found(view: MailboxView, uids: UidSet) -> Iterator[Message]:
    """Yield the messages that the view has, in UID order, in time O(found) however wide the ranges are."""
    return (view.messages[uid] for low, high in uids.ranges for uid in view.messages.irange(low, high))


def _among(messages: list[Message], uids: UidSet) -> list[Message]:
    """Return those of all messages of a view, in any order, that have these UIDs, in UID order."""
    ordered = sorted(messages)
    held = [message.uid for message in ordered]
    some = (ordered[bisect_left(held, low) : bisect_right(held, high)] for low, high in uids.ranges)
    return [*chain.from_iterable(some)]
