"""Merges of another branch with what this node shows: planned beside the writer, and carried out by an entry."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from protocol.values import UID_MAX, Dot, context_dots
from replicator.config import UidConflict
from replicator.errors import HistoryError, MailboxFullError
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import why_not_of
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply_and_release
from replicator.store.log.forks.branches import Branch
from replicator.store.log.replay import State
from resync import bulk, conflicts
from resync import row as rows_of
from resync.bulk import Item
from resync.conflicts import NO_CONFLICTS, Conflicts
from resync.entry import Merge, TreeMerge
from resync.folder_tree import TreeState, merge_trees, tree_difference
from resync.merge import Anew, difference, merge
from resync.state import MERGE_HEADROOM, MailboxState


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
    anew = Anew(partial(queries.stamp_time, connection)) if uid is UidConflict.UIDVALIDITY else None
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
