"""Threads (RFC 5256): trees of messages, how they are printed, and the algorithm ORDEREDSUBJECT."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from replicator.imap.ordering.order import Order
from replicator.imap.ordering.parts import in_order, lowest
from replicator.imap.ordering.threadables import Threadables

PRINTED_AT_ONCE = 5000  # pieces of thread lists, joined in a millisecond


class Threads:
    """Trees of nodes: messages, by their places, and dummies, which have higher numbers.

    A dummy is the root of messages whose parent is not in the mailbox, or is not known. `ranks`: of the nodes, by date
    and then by UID; a dummy has that of its first child (RFC 5256 section 3).
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        """`ranks`: of the messages. There are no threads yet."""
        self._messages = len(ranks)
        self.ranks = [*ranks]
        self.roots: list[int] = []
        self.children: dict[int, list[int]] = {}

    def is_dummy(self, node: int) -> bool:
        """Return True if the node is not a message."""
        return node >= self._messages

    def first(self, root: int) -> int:
        """Return the message of a root, else its first child."""
        return lowest(self.children[root], self.ranks.__getitem__) if self.is_dummy(root) else root

    def new_dummy(self, children: list[int]) -> int:
        """Return a dummy that has these children."""
        self.ranks.append(self.ranks[lowest(children, self.ranks.__getitem__)])
        self.children[len(self.ranks) - 1] = children
        return len(self.ranks) - 1

    def put_below(self, parent: int, nodes: Sequence[int]) -> None:
        """Add children to a node."""
        self.children.setdefault(parent, []).extend(nodes)
        if self.is_dummy(parent):
            self.ranks[parent] = min(self.ranks[parent], self.ranks[lowest(nodes, self.ranks.__getitem__)])

    def sort_roots(self) -> None:
        """Sort the threads by the ranks of their roots."""
        self.roots = in_order(self.roots, self.ranks.__getitem__)

    def sort_children(self) -> None:
        """Sort all nodes but the roots among their siblings."""
        for parent, children in self.children.items():
            if len(children) > 1:
                self.children[parent] = in_order(children, self.ranks.__getitem__)


def by_ordered_subject(messages: Threadables) -> Threads:
    """Return the threads by ORDEREDSUBJECT: one for each subject, its first message above all others."""
    threads, root_of = Threads(messages.ranks()), dict[str, int]()
    for place in in_order(range(len(messages)), threads.ranks.__getitem__):
        subject, _ = messages.subjects[place]
        root = root_of.setdefault(subject, place)
        if root == place:
            threads.roots.append(place)
        else:
            threads.children.setdefault(root, []).append(place)
    return threads


def printed(threads: Threads) -> Order:
    """Return the order of the messages in the thread lists of RFC 5256 section 4, with the forms of the lists."""
    places = array("I")
    pieces, forms = _pieces(threads, places), list[bytes]()
    while form := "".join(islice(pieces, PRINTED_AT_ONCE)):
        forms.append(form.encode("ascii"))
    return Order(places, forms)


def _pieces(threads: Threads, places: array[int]) -> Iterator[str]:
    """Yield the forms of the lists in pieces; add to `places` the messages that are to be told in them.

    Takes no recursion: threads may be as deep as the mailbox has messages.
    """
    for root in threads.roots:
        if root not in threads.children:
            places.append(root)
            yield "(%d)"
            continue
        left: list[int | None] = [root]  # None: the end of a list
        while left:
            node = left.pop()
            if node is None:
                yield ")"
                continue
            yield "("
            children = threads.children.get(node, ())
            while len(children) == 1 and not threads.is_dummy(node):
                places.append(node)
                yield "%d "
                node = children[0]
                children = threads.children.get(node, ())
            if not threads.is_dummy(node):
                places.append(node)
                yield "%d " if children else "%d"
            left += [None, *reversed(children)]
