"""Finding the messages of a view by their UIDs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from protocol.values import Dot, UidSet
from replicator.mail.view import MailboxView, Message
from replicator.runtime.environment import ThreadRunner

FOUND_AT_ONCE = 2000  # messages that the event loop finds; more are found in a thread


class SeenMessages(NamedTuple):
    """Messages of one mailbox, in UID order, and the head at which a client has seen them."""

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
    return SeenMessages(view.user, view.mailbox_id, view.uidvalidity, head, found)


def _found(view: MailboxView, uids: UidSet) -> Iterator[Message]:
    """Yield the messages that the view has, in UID order, in time O(found) however wide the ranges are."""
    return (view.messages[uid] for low, high in uids.ranges for uid in view.messages.irange(low, high))


def _among(messages: list[Message], uids: UidSet) -> list[Message]:
    """Return those of all messages of a view, in any order, that have these UIDs, in UID order."""
    ordered = sorted(messages)
    held = [message.uid for message in ordered]
    some = (ordered[bisect_left(held, low) : bisect_right(held, high)] for low, high in uids.ranges)
    return [*chain.from_iterable(some)]
