"""Forks: finding the other branches of a history in the log, rebuilding what they show, and joining them.

An entry that waits although the log has its predecessor stands on another branch than ours. The log has all of that
branch, back to the first entry or to a checkpoint, so its state follows from the log alone: no other node need be
asked, and it does not matter whether a node is left that shows it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush

from protocol.values import UID_MAX, Context, Dot
from replicator.config import UidConflict
from replicator.errors import HistoryError, MailboxFullError
from replicator.store.checkpoints import catalog
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import NUMBER_MAX, why_not_of
from replicator.store.db.message_rows import DamagedRowError
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply_and_release
from replicator.store.log.replay import Base, State, past_at
from resync import bulk
from resync import row as rows_of
from resync.bulk import Item
from resync.entry import Entry, Merge, TreeMerge
from resync.merge import Anew, difference, merge
from resync.state import MERGE_HEADROOM, ContradictionError, MailboxState
from resync.tree import TreeState, merge_trees, tree_difference


def waiting_chains(connection: sqlite3.Connection) -> list[MailboxKey]:
    """Mailboxes and trees with entries that wait, the most recently changed first."""
    rows = connection.execute(
        "SELECT origin, seq, body, MAX(time) FROM log WHERE applied = 0 GROUP BY chain ORDER BY MAX(time) DESC"
    )
    entries = (queries.entry_of(Dot(origin, seq), body) for origin, seq, body, _ in rows)
    return [MailboxKey(entry.user, entry.mailbox_id, entry.uidvalidity) for entry in entries]


def branch_heads(connection: sqlite3.Connection, chain_id: bytes) -> list[Dot]:
    """The heads of the other branches that are here whole, in the order of their dots."""
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
    """Whether all that lies between the entry and what this node shows or has shown is in the log.

    With a checkpoint, over any predecessor. MODSEQs fall on the way: entries of a node that lies might lead in a
    circle.
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


@dataclass(frozen=True, slots=True)
class Stray:
    """Mail in a folder that was deleted, while another folder counts under its name: it belongs there."""

    source: MailboxKey
    destination: MailboxKey
    to_copy: tuple[tuple[int, bytes], ...]  # UID and GUID of what the destination lacks
    to_expunge: tuple[int, ...]  # UIDs
    head: Dot | None  # at which those UIDs are so


def users_with_strays(connection: sqlite3.Connection) -> list[str]:
    """All users for whom `strays` may have something."""
    rows = connection.execute(
        "SELECT DISTINCT f.user FROM folder f JOIN chain c ON c.id = f.mailbox_id AND c.messages > 0"
        " WHERE f.deleted = 1 ORDER BY f.user"
    )
    return [user for (user,) in rows]


def strays(connection: sqlite3.Connection, user: str) -> list[Stray]:
    """What is left of a user's folders that became one, and of such as were deleted while mail arrived."""
    by_name: dict[str, list[MailboxKey]] = {}
    for record in queries.folders_in_sight(connection, user):
        by_name.setdefault(record.name, []).append(record.key(user))
    return [_stray(connection, key, counts) for *gone, counts in by_name.values() for key in gone]


def _stray(connection: sqlite3.Connection, source: MailboxKey, destination: MailboxKey) -> Stray:
    chain, lying = queries.rows(connection, source.mailbox_id)
    lacking = [row for row in lying if queries.placement(connection, row.guid, destination.mailbox_id) is None]
    return Stray(
        source,
        destination,
        tuple((row.uid, row.guid) for row in lacking),
        tuple(row.uid for row in lying),
        chain.head if chain else None,
    )


def replay_branch(connection: sqlite3.Connection, head: Dot, base: Base | None = None) -> State | None:
    """What a node shows whose head that is. Its branch is whole.

    None if that cannot be told yet: a merge came here before all that it has joined; or not at all: the branch begins
    before the log. Raises ContradictionError if there is no such node, or one that has numbered apart from itself.
    """
    past = past_at(connection, head, base)
    if past is None or not check_apart(connection, past.chain_id, head, past.state.context, base):
        return None
    return past.state


def check_apart(
    connection: sqlite3.Connection, chain_id: bytes, head: Dot, context: Context, base: Base | None = None
) -> bool:
    """Whether the log tells that a branch, by its head and context, and what this node shows can be joined.

    Raises ContradictionError if they cannot: a node has numbered apart from itself.
    """
    chain = chains.load(connection, chain_id)
    if chain is None or chain.head is None:
        return True
    for begin in (None, base):
        walk = _Walk(connection, begin)
        if walk.down(chain.head, head):
            ours, theirs = walk.apart
            _check_seen(ours, context)
            _check_seen(theirs, chain.context)
            return True
    return False


class _Walk:
    """Down the histories of two heads, to the entries that only the one and only the other has, `apart`.

    By MODSEQ, which falls from entry to predecessor, until nothing is left that only one of them has. What a base has
    seen is not looked at: it is the same for both if both have come to the base itself.
    """

    _BOTH = 3

    def __init__(self, connection: sqlite3.Connection, base: Base | None) -> None:
        self.apart: tuple[list[Dot], list[Dot]] = ([], [])
        self._connection = connection
        self._base = base
        self._at_base = self._below_base = 0  # who has come there, as in `_sides`
        self._sides: dict[Dot, int] = {}  # 1: ours, 2: theirs, 3: both have it
        self._entries: dict[Dot, Entry] = {}
        self._queue: list[tuple[int, Dot]] = []
        self._modseq = NUMBER_MAX  # of the last entry that was looked at

    def down(self, ours: Dot, theirs: Dot) -> bool:
        """False if some of the entries are not here."""
        if not (self._reach(ours, 1) and self._reach(theirs, 2)):
            return False
        while not self._is_done():
            if not self._queue:
                return False
            _, dot = heappop(self._queue)
            side, entry = self._sides.pop(dot), self._entries.pop(dot)
            self._modseq = entry.modseq
            if side != self._BOTH:
                self.apart[side - 1].append(dot)
            if not all(self._reach(before, side) for before in entry.predecessors):
                return False
        return True

    def _reach(self, dot: Dot, side: int) -> bool:
        """False if it is not here, or leads in a circle."""
        if self._base is not None and self._base.state.context.get(dot.origin, 0) >= dot.seq:
            if dot == self._base.head.dot:
                self._at_base |= side
            else:
                self._below_base |= side
            return True
        if dot not in self._sides:
            entry = queries.entry_at(self._connection, dot)
            if entry is None or entry.modseq >= self._modseq:
                return False
            self._entries[dot] = entry
            heappush(self._queue, (-entry.modseq, dot))
        self._sides[dot] = self._sides.get(dot, 0) | side
        return True

    def _is_done(self) -> bool:
        is_same_below = self._at_base == self._BOTH or not (self._at_base or self._below_base)
        return is_same_below and all(self._sides[dot] == self._BOTH for _, dot in self._queue)


def _check_seen(apart: list[Dot], context: Context) -> None:
    """A context must not count as seen what its history lacks: a merge would take that for expunged.

    Raises ContradictionError.
    """
    for dot in apart:
        if context.get(dot.origin, 0) >= dot.seq:
            raise ContradictionError(f"{dot.origin} has numbered on two branches: {dot} is not on both")


class MiscountedError(DamagedRowError):
    """What this node shows is not what its head counts: a merge would take a row that was lost for expunged."""

    def __init__(self) -> None:
        wrong = "is not what its head counts; run `replicator check --repair` at this node"
        super().__init__("what this node shows of it", wrong)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a branch is to be joined to what this node shows at a head. In its claims the merge is `_UNNAMED`.

    `time`: of a stamp that is not below any of the branch; 0 if the log has them all.
    """

    key: MailboxKey
    heads: tuple[Dot, Dot]  # ours and the branch's
    modseq: int
    changes: tuple[Merge, ...] | tuple[TreeMerge, ...]
    time: int


_UNNAMED = Dot("", 0)
"""The merge, until it is numbered: no entry has that name."""


def plan_merge(
    connection: sqlite3.Connection,
    key: MailboxKey,
    head: Dot,
    branch: State,
    uid: UidConflict = UidConflict.RENUMBER,
    *,
    time: int = 0,
) -> Plan | None:
    """How to join a branch to what a reader sees now; `time` as in `Plan`. None if that was done meanwhile.

    Takes seconds where there are a hundred thousand messages: the writer does not wait for it, and carries it out if
    nothing has changed. Raises MailboxFullError, MiscountedError; HistoryError for another user's mailbox.
    """
    connection.execute("BEGIN")
    try:
        shown = _shown(connection, key, head, chains.load(connection, key.mailbox_id))
    finally:
        connection.execute("COMMIT")
    return _planned(connection, key, (shown[0], head), (shown[1], branch), uid, time=time) if shown else None


def carry_out(tx: Transaction, plan: Plan) -> Dot | None:
    """Join the branches by an entry of its own. None if this node has gone on since the plan was made."""
    key, (ours, _) = plan.key, plan.heads
    chain = tx.chain(key.mailbox_id)
    if chain is None or chain.head != ours:
        return None
    if plan.time:
        tx.observe(plan.time)  # else the merge would be stamped before what it stands on
    changes = [_named(change, tx.next_dot()) for change in plan.changes]
    entry = tx.next_entry(key.mailbox_id, key.user, key.uidvalidity, changes)
    entry = replace(entry, predecessors=plan.heads, modseq=plan.modseq)
    tx.append(entry, [], applied=True)
    apply_and_release(tx, entry)
    return entry.dot


def merge_branch(
    tx: Transaction,
    key: MailboxKey,
    head: Dot,
    branch: State,
    uid: UidConflict = UidConflict.RENUMBER,
    *,
    time: int = 0,
) -> Dot | None:
    """Plan and carry out at once, while the writer waits. None if that was done meanwhile. Raises as `plan_merge`."""
    shown = _shown(tx.connection, key, head, tx.chain(key.mailbox_id))
    if shown is None:
        return None
    return carry_out(tx, _planned(tx.connection, key, (shown[0], head), (shown[1], branch), uid, time=time))


def _shown(connection: sqlite3.Connection, key: MailboxKey, head: Dot, chain: Chain | None) -> tuple[Dot, State] | None:
    """This node's head and what it shows there. None if that has seen the branch. Raises as `plan_merge`."""
    if chain is None or chain.head is None or chain.has_seen(head):
        return None
    if wrong := why_not_of(connection, chain, key):
        raise HistoryError(f"branches are not joined: {wrong}")
    if key.uidvalidity == 0:
        tree = queries.tree_state(connection, key.user, chain)
        _check_counted(chain, [*tree.folders.values(), *tree.subscriptions.values()])
        return chain.head, tree
    rows = {row.uid: row for row in queries.mailbox_rows(connection, key.mailbox_id)}
    _check_counted(chain, rows.values())
    return chain.head, MailboxState(chain.uidnext, chain.highestmodseq, dict(chain.context), rows, chain.risen)


def _check_counted(chain: Chain, items: Collection[Item]) -> None:
    """The rows themselves are hashed: it is them that are joined, and not what lies beside them.

    Raises MiscountedError.
    """
    is_all = not chain.uidvalidity or len(items) == chain.messages
    if not is_all or rows_of.add(0, *map(bulk.hash_of, items)) != chain.fingerprint:
        raise MiscountedError


def _planned(
    connection: sqlite3.Connection,
    key: MailboxKey,
    heads: tuple[Dot, Dot],
    sides: tuple[State, State],
    uid: UidConflict,
    *,
    time: int,
) -> Plan:
    ours, branch = sides
    if isinstance(ours, TreeState) and isinstance(branch, TreeState):
        tree = merge_trees(ours, branch)
        return Plan(key, heads, tree.modseq, tree_difference(tree, (ours, branch)), time)
    assert isinstance(ours, MailboxState)
    assert isinstance(branch, MailboxState)
    anew = Anew(partial(_time_of, connection)) if uid is UidConflict.UIDVALIDITY else None
    merged = merge(ours, branch, _UNNAMED, anew)
    _check_uids_suffice(merged, (ours, branch))
    return Plan(key, heads, merged.modseq, difference(merged, (ours, branch)), time)


def _check_uids_suffice(merged: MailboxState, sides: Iterable[MailboxState]) -> None:
    """Raises MailboxFullError where no node would take the merge (`resync.state.why_not_merge`)."""
    spare = UID_MAX - MERGE_HEADROOM
    limit = UID_MAX if all(side.uidnext >= spare for side in sides) else spare
    if merged.uidnext > limit:
        raise MailboxFullError(f"that would take UIDs up to {merged.uidnext - 1}, and they end at {limit - 1}")


def _named(change: Merge | TreeMerge, dot: Dot) -> Merge | TreeMerge:
    """As the merge of this name gives it."""
    if isinstance(change, TreeMerge):
        return change
    return change._replace(rows=tuple(row._replace(claim=dot) if row.claim == _UNNAMED else row for row in change.rows))


def _time_of(connection: sqlite3.Connection, dot: Dot) -> int | None:
    row: tuple[int] | None = connection.execute("SELECT time FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    return row[0] if row else None
