"""Forks: finding other branches of a history in the log, rebuilding their states, and merging them.

An entry that waits although the log has its predecessor stands on another branch than this node's. The log has the
whole branch, back to the first entry or to a checkpoint, so its state follows from the log alone: no other node need be
asked, and no node that shows the branch need exist any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from protocol.values import UID_MAX, Context, Dot, context_dots
from replicator.config import UidConflict
from replicator.errors import HistoryError, MailboxFullError
from replicator.store.checkpoints import catalog
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import NUMBER_MAX, why_not_of
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply_and_release
from replicator.store.log.replay import Base, State, past_at
from resync import bulk, conflicts
from resync import row as rows_of
from resync.bulk import Item
from resync.clock import COUNTER_BITS
from resync.conflicts import NO_CONFLICTS, Conflicts, Since
from resync.entry import Entry, Merge, TreeMerge
from resync.folder_tree import TreeState, merge_trees, tree_difference
from resync.merge import Anew, difference, merge
from resync.row import Row
from resync.state import MERGE_HEADROOM, ContradictionError, MailboxState


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


@dataclass(frozen=True, slots=True)
class StrayMail:
    """Mail in a deleted folder whose name another folder now has; the mail belongs in that one.

    A message may be expunged here if it came to the destination later than here. If it was there before, another node
    may have moved it from there to here, for which that folder was the deleted one, and has expunged it there. So each
    message keeps its latest placement, whichever nodes move it at once, and in whichever directions.
    """

    source: MailboxKey
    destination: MailboxKey
    to_copy: tuple[tuple[int, bytes], ...]  # UID and GUID of messages that the destination lacks
    to_copy_anew: tuple[tuple[int, bytes], ...]  # the same, of those that it may be about to lose
    to_expunge: tuple[tuple[int, bytes], ...]  # the same, of those that came there later
    head: Dot | None  # the source's head, as of which the UIDs hold


def users_with_strays(connection: sqlite3.Connection) -> list[str]:
    """Return all users for whom `strays` may find something."""
    rows = connection.execute(
        "SELECT DISTINCT f.user FROM folder f JOIN chain c ON c.id = f.mailbox_id AND c.messages > 0"
        " WHERE f.deleted = 1 ORDER BY f.user"
    )
    return [user for (user,) in rows]


def stray_folder_count(connection: sqlite3.Connection) -> int:
    """Return the number of folders, of all users, whose mail is to move to another folder of their name."""
    return sum(len(_stray_folders(connection, user)) for user in users_with_strays(connection))


def strays(connection: sqlite3.Connection, user: str) -> list[StrayMail]:
    """Return the mail left in a user's folders that were united with another, or deleted while mail arrived."""
    return [_stray(connection, source, destination) for source, destination in _stray_folders(connection, user)]


def _stray_folders(connection: sqlite3.Connection, user: str) -> list[tuple[MailboxKey, MailboxKey]]:
    """Return the user's folders that hold stray mail, each with the folder where the mail belongs."""
    by_name: dict[str, list[MailboxKey]] = {}
    for record in queries.folders_in_sight(connection, user):
        by_name.setdefault(record.name, []).append(record.key(user))
    return [(source, destination) for *gone, destination in by_name.values() for source in gone]


def _stray(connection: sqlite3.Connection, source: MailboxKey, destination: MailboxKey) -> StrayMail:
    chain, lying = queries.rows(connection, source.mailbox_id)
    lacking, anew, done = list[Row](), list[Row](), list[Row]()
    for row in lying:
        held = queries.row_of_guid(connection, row.guid, destination.mailbox_id)
        if held is None:
            lacking.append(row)
        elif _came_at_least(connection, held) > _came_at_most(connection, row):
            done.append(row)
        else:
            anew.append(row)
    to_copy, to_copy_anew, to_expunge = (tuple((row.uid, row.guid) for row in rows) for rows in (lacking, anew, done))
    return StrayMail(source, destination, to_copy, to_copy_anew, to_expunge, chain.head if chain else None)


def _came_at_least(connection: sqlite3.Connection, row: Row) -> int:
    """Return the time of the latest placement's stamp, or one before, where the log does not tell it."""
    times = [time for dot, _ in row.placements() if (time := _time_of(connection, dot)) is not None]
    return max(times, default=(row.saved_ms or 0) << COUNTER_BITS)


def _came_at_most(connection: sqlite3.Connection, row: Row) -> int:
    """Return the time of the latest placement's stamp, or one after, where the log does not tell it."""
    times = [_time_of(connection, dot) for dot, _ in row.placements()]
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        return max(known)
    return NUMBER_MAX if row.saved_ms is None or row.also else max([*known, (row.saved_ms + 1) << COUNTER_BITS])


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


def check_apart(
    connection: sqlite3.Connection, chain_id: bytes, head: Dot, context: Context, base: Base | None = None
) -> Since | None:
    """Return when a branch, given by head and context, parted from ours, if the log proves that both can be merged.

    None: the log does not tell.

    Raises ContradictionError if they cannot be merged: a node has numbered on both branches without seeing its own
    entries.
    """
    chain = chains.load(connection, chain_id)
    if chain is None or chain.head is None:
        return Since()
    for begin in (None, base):
        walk = _Walk(connection, begin)
        if walk.down(chain.head, head):
            ours, theirs = walk.apart
            _check_seen(ours, context)
            _check_seen(theirs, chain.context)
            return Since(*walk.since)
    return None


class _Walk:
    """A walk down the histories of two heads, which collects the entries that only one of them has: `apart`.

    `since` has the time of the first of them, for each side.

    It goes by MODSEQ, which falls from entry to predecessor, until all that is left is common to both. Entries that the
    base has seen are skipped: they are common if both sides have reached the base itself.
    """

    _BOTH = 3

    def __init__(self, connection: sqlite3.Connection, base: Base | None) -> None:
        self.apart: tuple[list[Dot], list[Dot]] = ([], [])
        self.since = [0, 0]
        self._connection = connection
        self._base = base
        self._at_base = self._below_base = 0  # the sides that have come there, as in `_sides`
        self._sides: dict[Dot, int] = {}  # 1: ours, 2: theirs, 3: both have it
        self._entries: dict[Dot, Entry] = {}
        self._queue: list[tuple[int, Dot]] = []
        self._modseq = NUMBER_MAX  # of the last entry visited

    def down(self, ours: Dot, theirs: Dot) -> bool:
        """Walk down from both heads. Return False if some of the entries are not here."""
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
                self.since[side - 1] = min(entry.time, self.since[side - 1] or entry.time)
            if not all(self._reach(before, side) for before in entry.predecessors):
                return False
        return True

    def _reach(self, dot: Dot, side: int) -> bool:
        """Queue an entry for a side. Return False if the entry is not here, or leads in a circle."""
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
    """Check that a context does not claim entries that its history lacks: a merge would take their mail for expunged.

    Raises ContradictionError.
    """
    for dot in apart:
        if context.get(dot.origin, 0) >= dot.seq:
            raise ContradictionError(f"{dot.origin} has numbered entries on two branches: only one of them has {dot}")


class MiscountedError(DamagedRowError):
    """A mismatch between this node's rows and its head's counters: a merge would take a lost row for expunged."""

    def __init__(self) -> None:
        wrong = "do not match the counters of their head; run `replicator check --repair` at this node"
        super().__init__("the rows that this node shows", wrong)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """A plan to merge a branch with what this node shows at a head. New claims name the merge as `_UNNAMED`.

    `history` is that of the branch's head, `time` as in `Branch`. `conflicts`: what the merge decides.
    """

    key: MailboxKey
    ours: Dot
    theirs: Dot
    history: bytes
    modseq: int
    changes: tuple[Merge, ...] | tuple[TreeMerge, ...]
    time: int = 0
    conflicts: Conflicts = NO_CONFLICTS


_UNNAMED = Dot("", 0)
"""Placeholder for the merge's dot until the merge is numbered; no entry has this name."""


def plan_merge(
    connection: sqlite3.Connection,
    key: MailboxKey,
    branch: Branch,
    uid: UidConflict = UidConflict.RENUMBER,
) -> MergePlan | None:
    """Plan the merge of a branch with what a reader sees now. None if it is merged by now.

    Takes seconds for a hundred thousand messages, so it runs beside the writer, which carries the plan out if nothing
    has changed. Raises MailboxFullError, MiscountedError; HistoryError for another user's mailbox.
    """
    connection.execute("BEGIN")
    try:
        shown = _shown(connection, key, branch, chains.load(connection, key.mailbox_id))
    finally:
        connection.execute("COMMIT")
    return _planned(connection, key, shown, branch, uid) if shown else None


def carry_out(tx: Transaction, plan: MergePlan) -> Dot | None:
    """Merge the branches by an entry of its own. Return None if this node has moved on since the plan was made."""
    key = plan.key
    chain = tx.chain(key.mailbox_id)
    if chain is None or chain.head != plan.ours:
        return None
    if plan.time:
        tx.observe(plan.time)  # so that the merge's stamp is later than all that it stands on
    changes = [_named(change, tx.next_dot()) for change in plan.changes]
    entry = tx.next_entry(key.mailbox_id, key.user, key.uidvalidity, changes)
    heads, histories = (plan.ours, plan.theirs), (chain.history, plan.history)
    entry = replace(entry, predecessors=heads, histories=histories, modseq=plan.modseq)
    tx.append(entry, [], applied=True)
    apply_and_release(tx, entry)
    tx.commit.merged.append(plan.conflicts)
    return entry.dot


def merge_histories(tx: Transaction, key: MailboxKey, head: Dot, history: bytes) -> Dot | None:
    """Merge another history of the head that this node shows, where nothing else differs, by an entry on both.

    Nodes with either history can step onto it. Returns None if this node has moved on, or has that history.
    """
    chain = tx.chain(key.mailbox_id)
    if chain is None or chain.head != head or chain.history == history:
        return None
    context, modseq = context_dots(chain.context), chain.highestmodseq + 1
    if key.uidvalidity:
        unchanged = (Merge(chain.uidnext, chain.risen, context, (), ()),)
        return carry_out(tx, MergePlan(key, head, head, history, modseq, unchanged))
    return carry_out(tx, MergePlan(key, head, head, history, modseq, (TreeMerge(context, (), ()),)))


def merge_branch(
    tx: Transaction,
    key: MailboxKey,
    branch: Branch,
    uid: UidConflict = UidConflict.RENUMBER,
) -> Dot | None:
    """Plan and carry out in one job, while the writer waits. None if it was merged meanwhile.

    Raises as `plan_merge`.
    """
    shown = _shown(tx.connection, key, branch, tx.chain(key.mailbox_id))
    return carry_out(tx, _planned(tx.connection, key, shown, branch, uid)) if shown else None


def _shown(
    connection: sqlite3.Connection, key: MailboxKey, branch: Branch, chain: Chain | None
) -> tuple[Dot, State] | None:
    """Return this node's head and state, or None if the head has seen the branch. Raises as `plan_merge`."""
    if chain is None or chain.head is None or chain.has_seen(branch.head):
        return None
    if wrong := why_not_of(connection, chain, key):
        raise HistoryError(f"cannot merge the branches: {wrong}")
    if key.uidvalidity == 0:
        tree = queries.tree_state(connection, key.user, chain)
        _check_counted(chain, tree.rows())
        return chain.head, tree
    rows = {row.uid: row for row in queries.mailbox_rows(connection, key.mailbox_id)}
    _check_counted(chain, rows.values())
    return chain.head, MailboxState(chain.uidnext, chain.highestmodseq, dict(chain.context), rows, chain.risen)


def _check_counted(chain: Chain, items: Collection[Item]) -> None:
    """Check the rows against the head's counters, by hashing the rows themselves, since they are what is merged.

    Raises MiscountedError.
    """
    is_all = not chain.uidvalidity or len(items) == chain.messages
    if not is_all or rows_of.add(0, *map(bulk.hash_of, items)) != chain.fingerprint:
        raise MiscountedError


def _planned(
    connection: sqlite3.Connection,
    key: MailboxKey,
    shown: tuple[Dot, State],
    branch: Branch,
    uid: UidConflict,
) -> MergePlan:
    head, ours = shown
    plan = partial(MergePlan, key, head, branch.head, branch.history, time=branch.time)
    theirs = branch.state
    if isinstance(ours, TreeState) and isinstance(theirs, TreeState):
        tree = merge_trees(ours, theirs)
        return plan(
            tree.modseq, tree_difference(tree, (ours, theirs)), conflicts=conflicts.of_trees(tree, (ours, theirs))
        )
    assert isinstance(ours, MailboxState)
    assert isinstance(theirs, MailboxState)
    anew = Anew(partial(_time_of, connection)) if uid is UidConflict.UIDVALIDITY else None
    merged = merge(ours, theirs, _UNNAMED, anew)
    _check_uids_suffice(merged, (ours, theirs))
    decided = conflicts.of_mailboxes(merged, (ours, theirs), branch.since)
    return plan(merged.modseq, difference(merged, (ours, theirs)), conflicts=decided)


def _check_uids_suffice(merged: MailboxState, sides: Iterable[MailboxState]) -> None:
    """Raise MailboxFullError if no node would accept the merge (`resync.state.why_not_merge`)."""
    spare = UID_MAX - MERGE_HEADROOM
    limit = UID_MAX if all(side.uidnext >= spare for side in sides) else spare
    if merged.uidnext > limit:
        raise MailboxFullError(f"the merge would take UIDs up to {merged.uidnext - 1}, but they end at {limit - 1}")


def _named(change: Merge | TreeMerge, dot: Dot) -> Merge | TreeMerge:
    """Return the change with `dot` filled in as the merge's name."""
    if isinstance(change, TreeMerge):
        return change
    return change._replace(rows=tuple(row._replace(claim=dot) if row.claim == _UNNAMED else row for row in change.rows))


def _time_of(connection: sqlite3.Connection, dot: Dot) -> int | None:
    row: tuple[int] | None = connection.execute("SELECT time FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    return row[0] if row else None
