"""The threading algorithms REFERENCES (RFC 5256 section 3) and REFS (draft-ietf-morg-inthread).

The numbers in brackets are the RFC's steps. REFS leaves out step 5, which joins threads of one subject, and sorts the
threads by their latest message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from replicator.imap.ordering.parts import in_order
from replicator.imap.ordering.threads import Node, Threadable
from replicator.imap.work_meter import WorkMeter

_NAME_WORK = 10  # steps for a message id that was not seen before, and one for each
_OCTETS_A_STEP = 4  # of its octets: ids are kept in memory


class MessageIds:
    """The numbers of the message ids that were seen, from 0 on."""

    def __init__(self, work: WorkMeter) -> None:
        self._work = work
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, message_id: bytes) -> int:
        """Return the number of an id. Raises WorkExceededError."""
        self._work.spend(1)
        if (number := self._numbers.get(message_id)) is None:
            self._work.spend(_NAME_WORK + len(message_id) // _OCTETS_A_STEP)
            number = self._numbers[message_id] = len(self._numbers)
        return number


def by_references(messages: Sequence[Threadable], ids: int, work: WorkMeter) -> list[Node]:
    """Return the threads by REFERENCES. The messages name ids below `ids`. Raises WorkExceededError."""
    threads = in_order(_linked(messages, ids, work), key=_key)  # (4)
    joined = _join_by_subject(threads)
    _sort_siblings(joined)
    return in_order(joined, key=_key)  # (6)


def by_refs(messages: Sequence[Threadable], ids: int, work: WorkMeter) -> list[Node]:
    """Return the threads by REFS. The messages name ids below `ids`. Raises WorkExceededError."""
    threads = _linked(messages, ids, work)
    _sort_siblings(threads)
    latest = {thread: _latest(thread) for thread in threads}
    return in_order(threads, key=lambda thread: latest[thread])


def _key(node: Node) -> tuple[int, int]:
    return node.date_and_uid


# ---- (1) to (3): threads by what messages refer to --------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Link:
    """A message, or one that others refer to, with its parent."""

    node: Node
    parent: _Link | None = None
    had_children: bool = False


class _Links:
    def __init__(self, ids: int, work: WorkMeter) -> None:
        self._work = work
        self._by_id: list[_Link | None] = [None] * ids
        self.all: list[_Link] = []

    def add(self, message: Threadable) -> None:
        """Link a message with those that it refers to (1)."""
        self._work.spend(1 + len(message.references))
        parent = None
        for number in message.references:  # (1.A)
            link = self._of(number)
            if parent is not None and link.parent is None:
                self._link(parent, link)
            parent = link
        own = self._of_message(message)
        own.parent = None  # what another message's shortened References said
        if parent is not None:
            self._link(parent, own)  # (1.B)

    def _of(self, number: int) -> _Link:
        if (link := self._by_id[number]) is None:
            link = self._by_id[number] = self._new(Node())
        return link

    def _of_message(self, message: Threadable) -> _Link:
        """Return the message's link: one of its own if it has no id, or another message has the same one."""
        if message.own_id is None:
            return self._new(Node(message))
        link = self._of(message.own_id)
        if link.node.message is not None:
            return self._new(Node(message))
        link.node.message = message
        return link

    def _new(self, node: Node) -> _Link:
        self.all.append(_Link(node))
        return self.all[-1]

    def _link(self, parent: _Link, child: _Link) -> None:
        """Make `parent` the parent, unless that would make a circle."""
        if parent is child:
            return
        if child.had_children:
            above, steps = parent.parent, 1
            while above is not None and above is not child:
                above, steps = above.parent, steps + 1
            self._work.spend(steps)
            if above is child:
                return
        child.parent = parent
        parent.had_children = True


def _linked(messages: Iterable[Threadable], ids: int, work: WorkMeter) -> list[Node]:
    links = _Links(ids, work)
    for message in messages:
        links.add(message)
    roots = []
    for link in links.all:
        if link.parent is None:
            roots.append(link.node)  # (2)
        else:
            link.parent.node.children.append(link.node)
    return [thread for root in roots if (thread := _pruned(root)) is not None]


def _pruned(root: Node) -> Node | None:
    """Remove all dummies but one at the top that has several children (3). Return None if nothing is left."""
    left = [(child, root) for child in root.children]
    root.children = []
    while left:
        node, above = left.pop()
        if node.message is None:
            left += [(child, above) for child in node.children]
        else:
            above.children.append(node)
            left += [(child, node) for child in node.children]
            node.children = []
    if root.message is None and len(root.children) < 2:
        return root.children[0] if root.children else None
    return root


# ---- (5): threads of one subject --------------------------------------------------------------------------------


def _join_by_subject(threads: Sequence[Node]) -> list[Node]:
    """Join threads of one subject, looking at them in this order. Return all threads, in any order."""
    first = {thread: _first(thread) for thread in threads}
    table: dict[str, Node] = {}
    for thread in threads:  # (5.B)
        message = first[thread]
        if not message.subject:
            continue
        known = table.setdefault(message.subject, thread)
        if known.message is not None and (thread.message is None or (known.message.is_reply and not message.is_reply)):
            table[message.subject] = thread
    left = dict.fromkeys(threads)
    for thread in threads:  # (5.C)
        message = first[thread]
        other = table.get(message.subject)
        if other is None or other is thread:
            continue
        if other.message is None:
            other.children += thread.children if thread.message is None else [thread]
        elif message.is_reply and not other.message.is_reply:
            other.children.append(thread)
        else:
            table[message.subject] = joint = Node(children=[other, thread])
            del left[other]
            left[joint] = None
        del left[thread]
    return [*left]


def _first(thread: Node) -> Threadable:
    """Return the message whose subject is the thread's (5.A)."""
    first = thread if thread.message is not None else min(thread.children, key=_key)
    assert first.message is not None, "dummies are at the top alone"
    return first.message


# ---- dates ------------------------------------------------------------------------------------------------------


def _sort_siblings(threads: Iterable[Node]) -> None:
    """Sort all but the threads themselves by date (6)."""
    left = [*threads]
    while left:
        node = left.pop()
        if node.children:
            node.children = in_order(node.children, key=_key)
            left += node.children


def _latest(thread: Node) -> tuple[int, int]:
    latest, left = (0, 0), [thread]
    while left:
        node = left.pop()
        if node.message is not None:
            latest = max(latest, node.date_and_uid)
        left += node.children
    return latest
