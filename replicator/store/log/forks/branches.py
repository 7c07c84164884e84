"""Other branches of a history in the log: which there are, and the state at the head of each.

An entry that waits although the log has its predecessor stands on another branch than this node's. The log has the
whole branch, back to the first entry or to a checkpoint, so its state follows from the log alone: no other node need be
asked, and no node that shows the branch need exist any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import NamedTuple

from protocol.values import Dot
from replicator.store.checkpoints import catalog
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.log.forks.fork_point import check_apart
from replicator.store.log.replay import Base, State, past_at
from resync.conflicts import Since
from resync.entry import Entry


def waiting_chains(connection: sqlite3.Connection) -> list[MailboxKey]:
    """Return the mailboxes and trees with waiting entries, the most recently changed first."""
    rows = connection.execute(
        "SELECT origin, seq, body, MAX(time) FROM log WHERE applied = 0 GROUP BY chain ORDER BY MAX(time) DESC"
    )
    entries = (queries.entry_of(Dot(origin, seq), body) for origin, seq, body, _ in rows)
    return [MailboxKey.of(entry) for entry in entries]


def is_history_doubted(connection: sqlite3.Connection, chain_id: bytes) -> bool:
    """Return True if an entry waits because it names another history of the head that this node shows."""
    chain = chains.load(connection, chain_id)
    if chain is None or chain.head is None:
        return False
    query = "SELECT origin, seq FROM waiting WHERE chain = ? AND after_origin = ? AND after_seq = ?"
    dots = [Dot(*row) for row in connection.execute(query, (chain_id, *chain.head))]
    waiting = filter(None, (queries.entry_at(connection, dot) for dot in dots))
    return any(not entry.stands_on(chain.head, chain.history) for entry in waiting)


def branch_heads(connection: sqlite3.Connection, chain_id: bytes) -> list[Dot]:
    """Return the heads of the other branches that are here whole, in the order of their dots."""
    rows = connection.execute(
        "SELECT origin, seq, body FROM log WHERE chain = ? AND applied = 0 ORDER BY seq, origin", (chain_id,)
    )
    waiting = {Dot(origin, seq): queries.entry_of(Dot(origin, seq), body) for origin, seq, body in rows}
    followed = {predecessor for entry in waiting.values() for predecessor in entry.predecessors}
    shown, ways = chains.load(connection, chain_id), 2 if catalog.heads_of(connection, chain_id) else 1

    def is_here(dot: Dot) -> bool:
        if shown is not None and shown.has_seen(dot):
            return True
        query = "SELECT 1 FROM log WHERE origin = ? AND seq = ? AND applied = 1"
        return connection.execute(query, dot).fetchone() is not None

    return [dot for dot in waiting if dot not in followed and _is_whole(waiting, dot, is_here, ways)]


def _is_whole(waiting: Mapping[Dot, Entry], dot: Dot, is_here: Callable[[Dot], bool], ways: int) -> bool:
    """Return True if the log has all entries between `dot` and what this node shows or has shown.

    With a checkpoint, any predecessor will do. MODSEQs must fall along the path, since entries of a lying node might
    lead in a circle.
    """
    turns = [(waiting[dot].modseq + 1, dot)]
    while turns:
        modseq, at = turns.pop()
        entry = waiting.get(at)
        if entry is None:
            if is_here(at):
                return True
        elif entry.modseq < modseq:
            if not entry.predecessors:
                return True
            turns += [(entry.modseq, before) for before in reversed(entry.predecessors[:ways])]
    return False


class Branch(NamedTuple):
    """A branch that is to be joined: its head with its history, and the state there.

    `time`: of a stamp not below any stamp of the branch; 0 if the log has all of its entries. `since`: see `Since`.
    """

    head: Dot
    history: bytes
    state: State
    time: int = 0
    since: Since | None = None


def replay_branch(connection: sqlite3.Connection, head: Dot, base: Base | None = None) -> Branch | None:
    """Return the branch of this head, if it is whole.

    None if the state cannot be told yet (a merge arrived before all that it joined) or not at all (the branch begins
    before the log). Raises ContradictionError if no node can show it, or if a node has numbered on two branches.
    """
    past = past_at(connection, head, base)
    if past is None:
        return None
    since = check_apart(connection, past.chain_id, head, past.state.context, base)
    return None if since is None else Branch(head, past.history, past.state, since=since)
