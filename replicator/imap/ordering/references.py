"""The threading algorithms REFERENCES (RFC 5256 section 3) and REFS (draft-ietf-morg-inthread).

The numbers in brackets are the RFC's steps. REFS leaves out step 5, which joins threads of one subject, and sorts the
threads by their latest message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from replicator.imap.ordering.parts import in_order
from replicator.imap.ordering.threadables import Threadables
from replicator.imap.ordering.threads import Threads
from replicator.imap.work_meter import WorkMeter

_NONE = -1  # in place of a node


def by_references(messages: Threadables, work: WorkMeter) -> Threads:
    """Return the threads by REFERENCES. Raises WorkExceededError."""
    threads = _linked(messages, work)
    threads.sort_roots()  # (4)
    _join_by_subject(threads, messages.subjects)
    threads.sort_children()
    threads.sort_roots()  # (6)
    return threads


def by_refs(messages: Threadables, work: WorkMeter) -> Threads:
    """Return the threads by REFS. Raises WorkExceededError."""
    threads = _linked(messages, work)
    threads.sort_children()
    latest = {root: _latest(threads, root) for root in threads.roots}
    threads.roots = in_order(threads.roots, latest.__getitem__)
    return threads


# ---- (1) to (3): threads by what messages refer to --------------------------------------------------------------


class _Links:
    """Parents of nodes. A node is the place of a message, or a higher number: an id that no message here has.

    An id that several messages have is that of the first one.
    """

    def __init__(self, messages: Threadables, work: WorkMeter) -> None:
        self._work = work
        self._nodes = [_NONE] * len(messages.ids)  # by the number of an id
        for place, own_id in enumerate(messages.own_ids):
            number = None if own_id is None else messages.ids.get(own_id)
            if number is not None and self._nodes[number] == _NONE:
                self._nodes[number] = place
        count = len(messages)
        for number, node in enumerate(self._nodes):
            if node == _NONE:
                self._nodes[number], count = count, count + 1
        self.parents = [_NONE] * count
        self._had_children = bytearray(count)

    def add(self, place: int, references: Iterable[int]) -> None:
        """Link a message with those that it refers to (1)."""
        parent = _NONE
        for number in references:  # (1.A)
            node = self._nodes[number]
            if parent != _NONE and self.parents[node] == _NONE:
                self._link(parent, node)
            parent = node
        self.parents[place] = _NONE  # what another message's shortened References said
        if parent != _NONE:
            self._link(parent, place)  # (1.B)

    def _link(self, parent: int, child: int) -> None:
        """Make `parent` the parent, unless that would make a circle."""
        if parent == child:
            return
        if self._had_children[child]:
            above, steps = self.parents[parent], 1
            while above not in {_NONE, child}:
                above, steps = self.parents[above], steps + 1
            self._work.spend(steps)
            if above == child:
                return
        self.parents[child] = parent
        self._had_children[parent] = True


def _linked(messages: Threadables, work: WorkMeter) -> Threads:
    work.spend(messages.size)
    links = _Links(messages, work)
    for place in range(len(messages)):
        links.add(place, messages.references.get(place, ()))
    roots, children = list[int](), defaultdict[int, list[int]](list)
    for node, parent in enumerate(links.parents):
        if parent == _NONE:
            roots.append(node)  # (2)
        else:
            children[parent].append(node)
    threads = Threads(messages.ranks())
    for root in roots:
        if root in children:
            _add_pruned(threads, root, children)
        elif not threads.is_dummy(root):
            threads.roots.append(root)
    return threads


def _add_pruned(threads: Threads, root: int, children: Mapping[int, Sequence[int]]) -> None:
    """Add a thread without its dummies, but for one at the top that has several children (3)."""
    pruned = defaultdict[int, list[int]](list)
    left = [(child, root) for child in children[root]]
    while left:
        node, above = left.pop()
        if not threads.is_dummy(node):
            pruned[above].append(node)
            above = node
        left += [(child, above) for child in children.get(node, ())]
    if threads.is_dummy(root):
        below = pruned.pop(root, [])
        threads.roots += below if len(below) < 2 else [threads.new_dummy(below)]
    else:
        threads.roots.append(root)
    threads.children.update(pruned)


# ---- (5): threads of one subject --------------------------------------------------------------------------------


def _join_by_subject(threads: Threads, subjects: Sequence[tuple[str, bool]]) -> None:
    """Join threads of one subject, looking at them in their order. Leave them in any order."""
    first = {root: subjects[threads.first(root)] for root in threads.roots}  # (5.A)
    table: dict[str, int] = {}
    for root, (subject, is_reply) in first.items():  # (5.B)
        if not subject:
            continue
        known = table.setdefault(subject, root)
        if not threads.is_dummy(known) and (threads.is_dummy(root) or (first[known][1] and not is_reply)):
            table[subject] = root
    left = dict.fromkeys(threads.roots)
    for root, (subject, is_reply) in first.items():  # (5.C)
        other = table.get(subject, root)
        if other == root:
            continue
        if threads.is_dummy(other):
            threads.put_below(other, threads.children.pop(root) if threads.is_dummy(root) else [root])
        elif is_reply and not first[other][1]:
            threads.put_below(other, [root])
        else:
            table[subject] = joint = threads.new_dummy([other, root])
            del left[other]
            left[joint] = None
        del left[root]
    threads.roots = [*left]


# ---- dates ------------------------------------------------------------------------------------------------------


def _latest(threads: Threads, root: int) -> int:
    """Return the highest rank in a thread whose siblings are in order."""
    latest, left = threads.ranks[root], [root]
    while left:
        if children := threads.children.get(left.pop()):
            latest = max(latest, threads.ranks[children[-1]])
            left += children
    return latest
