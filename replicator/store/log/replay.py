"""Replay of the log: the state of a mailbox or folder tree at any entry of its history.

The log is the source of truth, for code that needs a state that the database does not show, or doubts the one that it
shows. Only this module knows where the log begins: at a mailbox's first entry, or at a checkpoint, its `base`. The
caller reads the base first (`checkpoint_reader`); the functions here run in a reader's or the writer's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from protocol.values import Dot
from replicator.store.checkpoints import catalog
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import NamedHead
from resync import bulk
from resync import row as rows
from resync.entry import Entry
from resync.folder_tree import TreeState
from resync.state import MailboxState

State: TypeAlias = MailboxState | TreeState


class Base(NamedTuple):
    """A checkpoint's content: a chain's state at one of its heads."""

    head: NamedHead
    history: bytes
    state: State


class Past(NamedTuple):
    """A mailbox or (`uidvalidity` 0, as in its first entry) a tree as of one of its entries, the `head`."""

    chain_id: bytes
    user: str
    uidvalidity: int
    head: Dot
    history: bytes
    state: State

    def chain(self) -> Chain:
        """Return the chain at the head. A mailbox's row counters stay 0: computing them takes a hash of each row."""
        state = self.state
        chain = Chain(self.chain_id, self.user, self.uidvalidity, head=self.head, history=self.history)
        chain.highestmodseq, chain.context = state.modseq, dict(state.context)
        if isinstance(state, MailboxState):
            chain.uidnext, chain.risen = state.uidnext, state.risen
        else:
            chain.fingerprint = rows.add(0, *map(bulk.hash_of, state.rows()))
        return chain


def past_at(
    connection: sqlite3.Connection, head: Dot, base: Base | None = None, *, detours: bool = False
) -> Past | None:
    """Return the state at a head, or None if the log does not lead there from the first entry or from the base.

    The path follows the first predecessors of merges; with a base or `detours` it follows any predecessor, since this
    node itself may have come that way. Raises ContradictionError if no node can have numbered the path.
    """
    bases = () if base is None else (base.head.dot,)
    way = _way(connection, head, bases, ways=2 if bases or detours else 1)
    if way is None:
        return None
    begin, path = way
    if begin is not None:
        assert base is not None
        start, history = base.head, path[-1].history if path else base.history
        return Past(start.mailbox_id, start.user, start.uidvalidity, head, history, _replayed(_copy(base.state), path))
    first = path[0]
    empty = TreeState() if first.is_tree else MailboxState()
    state = _replayed(empty, path)
    return Past(first.mailbox_id, first.user, first.uidvalidity, head, path[-1].history, state)


def base_for(connection: sqlite3.Connection, chain_id: bytes, head: Dot | None) -> NamedHead | None:
    """Return the head of this node's checkpoint to read before a replay of the chain to `head`, or None without one.

    The log leads from that checkpoint to the head. If no checkpoint is like that, or no head is given, it is the
    newest.
    """
    saved = {saved.dot: saved for saved in catalog.heads_of(connection, chain_id)}
    way = _way(connection, head, saved, ways=2, from_first=False) if saved and head is not None else None
    return saved[way[0]] if way and way[0] else next(iter(saved.values()), None)


def _replayed(state: State, path: Iterable[Entry]) -> State:
    for entry in path:
        state.apply(entry)
    return state


def _copy(state: State) -> State:
    if isinstance(state, TreeState):
        return state.copy()
    return replace(state, context=dict(state.context), rows=dict(state.rows))


def _way(
    connection: sqlite3.Connection, head: Dot, bases: Collection[Dot], ways: int, *, from_first: bool = True
) -> tuple[Dot | None, list[Entry]] | None:
    """Return one path to the head with the base at which it begins (None: the first entry), or None without a path.

    `from_first`: True if the path may begin at the first entry. All predecessors of a merge lead to the same state.
    """
    path: list[Entry] = []  # from the head down
    tried: set[Dot] = set()
    turns = [(0, head)]  # still to be tried: length of the path so far, and the next dot
    while turns:
        length, at = turns.pop()
        del path[length:]
        if at in bases:
            return at, path[::-1]
        entry = None if at in tried else queries.entry_at(connection, at)
        tried.add(at)
        if entry is not None:
            path.append(entry)
            if from_first and not entry.predecessors:
                return None, path[::-1]
            turns += [(len(path), dot) for dot in reversed(entry.predecessors[:ways])]
    return None
