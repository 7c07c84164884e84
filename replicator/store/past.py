"""What a mailbox or a folder tree was at a point of its history, as the log tells it.

The log is the source of truth: whoever needs a state that the database does not show, or doubts what it shows, asks
here. This is the one place that knows where the log begins.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple, TypeAlias

from protocol.values import Dot
from replicator.store import reading
from replicator.store.chain import Chain
from resync import bulk
from resync import row as rows
from resync.bulk import Item
from resync.entry import Entry
from resync.state import MailboxState, replay
from resync.tree import TreeState, replay_tree

State: TypeAlias = MailboxState | TreeState


class Past(NamedTuple):
    """A mailbox or (`uidvalidity` 0, as in its first entry) a tree at one of its entries, the `head`."""

    chain_id: bytes
    user: str
    uidvalidity: int
    head: Dot
    state: State

    def chain(self) -> Chain:
        """The head's numbers. What counts a mailbox's rows is left at none: it costs a hash of each of them."""
        state = self.state
        chain = Chain(self.chain_id, self.user, self.uidvalidity, head=self.head)
        chain.highestmodseq, chain.context = state.modseq, dict(state.context)
        if isinstance(state, MailboxState):
            chain.uidnext, chain.risen = state.uidnext, state.risen
        else:
            items: list[Item] = [*state.folders.values(), *state.subscriptions.values()]
            chain.fingerprint = rows.add(0, *map(bulk.hash_of, items))
        return chain


def past_at(connection: sqlite3.Connection, head: Dot, *, detours: bool = False) -> Past | None:
    """What a node shows whose head that is. None if the log does not lead there from the first entry.

    It leads over the first predecessors of merges; with `detours` over any, as this node itself may have come.
    Raises ContradictionError if no node can have numbered that.
    """
    path = _path(connection, head, ways=2 if detours else 1)
    if path is None:
        return None
    first = path[0]
    state = replay_tree(path) if first.is_tree else replay(path)
    return Past(first.mailbox_id, first.user, first.uidvalidity, head, state)


def _path(connection: sqlite3.Connection, head: Dot, ways: int) -> list[Entry] | None:
    """One way from the first entry to the head: all of a merge's predecessors lead to the same state."""
    path: list[Entry] = []  # from the head down
    tried: set[Dot] = set()
    turns = [(0, head)]  # still to be tried: after how many entries of the path, and where to
    while turns:
        length, at = turns.pop()
        del path[length:]
        entry = None if at in tried else reading.entry_at(connection, at)
        tried.add(at)
        if entry is not None:
            path.append(entry)
            if not entry.predecessors:
                return path[::-1]
            turns += [(len(path), dot) for dot in reversed(entry.predecessors[:ways])]
    return None
