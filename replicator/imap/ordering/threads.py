"""Threads (RFC 5256): trees of messages, how they are printed, and the algorithm ORDEREDSUBJECT."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from replicator.imap.ordering.parts import in_order

NO_REFERENCES: Sequence[int] = array("I")


class Threadable(NamedTuple):
    """Facts of a message for threading. The date is that of the Date field, or else the internal one.

    Message ids are numbers, given by whoever reads them; None: the message has no id of its own.
    """

    uid: int
    date_ms: int
    subject: str = ""
    is_reply: bool = False
    own_id: int | None = None
    references: Sequence[int] = NO_REFERENCES


@dataclass(slots=True, eq=False)
class Node:
    """A place in a thread. Without a message it is a dummy: the message is not in the mailbox, or was not found."""

    message: Threadable | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def date_and_uid(self) -> tuple[int, int]:
        """The key by which siblings are sorted; a dummy has that of its first child (RFC 5256 section 3)."""
        if self.message is not None:
            return self.message.date_ms, self.message.uid
        return min(child.date_and_uid for child in self.children)


def by_ordered_subject(messages: Sequence[Threadable]) -> list[Node]:
    """Return the threads by ORDEREDSUBJECT: one for each subject, its first message above all others."""
    ordered = in_order(messages, key=lambda message: (message.subject, message.date_ms, message.uid))
    threads = []
    for _, (first, *others) in groupby(ordered, key=lambda message: message.subject):
        threads.append(Node(first, [Node(other) for other in others]))
    return in_order(threads, key=lambda thread: thread.date_and_uid)


def printed(threads: Sequence[Node], number: Callable[[int], int | None]) -> Iterator[str]:
    """Yield the thread lists of RFC 5256 section 4 in pieces, each message as the number of its UID.

    Takes no recursion: threads may be as deep as the mailbox has messages.
    """
    for thread in threads:
        left: list[Node | None] = [thread]  # None: the end of a list
        while left:
            node = left.pop()
            if node is None:
                yield ")"
                continue
            yield "("
            while node.message is not None and len(node.children) == 1:
                yield f"{number(node.message.uid)} "
                node = node.children[0]
            if node.message is not None:
                yield f"{number(node.message.uid)}{' ' if node.children else ''}"
            left += [None, *reversed(node.children)]
