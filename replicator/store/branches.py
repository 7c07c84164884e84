"""Forks: finding the other branches of a history in the log, rebuilding what they show, and joining them.

An entry that waits although the log has its predecessor stands on another branch than ours. The log has all of that
branch, back to the first entry, so its state follows from the log alone: no other node need be asked, and it does
not matter whether a node is left that shows it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from protocol.values import Dot, UidSet
from replicator.store import reading
from replicator.store.apply import apply_and_release
from replicator.store.reading import MailboxKey
from replicator.store.transaction import Transaction
from resync.entry import Entry, Merge, TreeMerge
from resync.merge import difference, merge
from resync.state import MailboxState, replay
from resync.tree import TreeState, merge_trees, replay_tree, tree_difference

State = MailboxState | TreeState


def waiting_chains(connection: sqlite3.Connection) -> list[MailboxKey]:
    """Mailboxes and trees with entries that wait, the most recently changed first."""
    rows = connection.execute(
        "SELECT origin, seq, body, MAX(time) FROM log WHERE applied = 0 GROUP BY chain ORDER BY MAX(time) DESC"
    )
    entries = (Entry.unpack(Dot(origin, seq), body) for origin, seq, body, _ in rows)
    return [MailboxKey(entry.user, entry.mailbox_id, entry.uidvalidity) for entry in entries]


def branch_heads(connection: sqlite3.Connection, chain_id: bytes) -> list[Dot]:
    """The heads of the other branches that are here whole, in the order of their dots."""
    rows = connection.execute(
        "SELECT origin, seq, body FROM log WHERE chain = ? AND applied = 0 ORDER BY seq, origin", (chain_id,)
    )
    waiting = {Dot(origin, seq): Entry.unpack(Dot(origin, seq), body) for origin, seq, body in rows}
    followed = {predecessor for entry in waiting.values() for predecessor in entry.predecessors}
    return [dot for dot in waiting if dot not in followed and _is_whole(connection, waiting, dot)]


def _is_whole(connection: sqlite3.Connection, waiting: dict[Dot, Entry], dot: Dot) -> bool:
    """Whether all that lies between the entry and what this node shows or has shown is in the log."""
    while (entry := waiting.get(dot)) is not None:
        if not entry.predecessors:
            return True
        dot = entry.predecessors[0]
    return reading.entry_at(connection, dot) is not None


@dataclass(frozen=True, slots=True)
class Stray:
    """Mail in a folder that was deleted, while another folder bears its name: it belongs there."""

    source: MailboxKey
    destination: MailboxKey
    to_copy: tuple[tuple[int, bytes], ...]  # UID and GUID of what the destination lacks
    to_expunge: UidSet
    head: Dot | None  # at which those UIDs are so


def strays(connection: sqlite3.Connection, user: str) -> list[Stray]:
    """What is left of a user's folders that became one, and of such as were deleted while mail arrived."""
    rows = connection.execute(
        "SELECT gone.mailbox_id, gone.uidvalidity, here.mailbox_id, here.uidvalidity FROM folder gone"
        " JOIN chain c ON c.id = gone.mailbox_id AND c.messages > 0"
        " JOIN folder here ON here.user = gone.user AND here.name = gone.name AND here.deleted = 0"
        " WHERE gone.user = ? AND gone.deleted = 1 ORDER BY gone.mailbox_id",
        (user,),
    ).fetchall()
    found = []
    for source, source_uidvalidity, destination, uidvalidity in rows:
        chain, lying = reading.rows(connection, source)
        if chain is None:
            continue
        lacking = [row for row in lying if reading.placement(connection, row.guid, destination) is None]
        found.append(
            Stray(
                MailboxKey(user, source, source_uidvalidity),
                MailboxKey(user, destination, uidvalidity),
                tuple((row.uid, row.guid) for row in lacking),
                UidSet.of(row.uid for row in lying),
                chain.head,
            )
        )
    return found


def replay_branch(connection: sqlite3.Connection, head: Dot) -> State:
    """What a node shows whose head that is. Its branch is whole. Raises ContradictionError: there is no such node."""
    path: list[Entry] = []
    at: Dot | None = head
    while at is not None:
        entry = reading.entry_at(connection, at)
        assert entry is not None, "a branch that is whole reaches back to the first entry"
        path.append(entry)
        at = entry.predecessors[0] if entry.predecessors else None
    path.reverse()
    return replay_tree(path) if path[0].is_tree else replay(path)


def merge_branch(tx: Transaction, key: MailboxKey, head: Dot, branch: State) -> Dot | None:
    """Join another branch to what this node shows, by an entry of its own. None if that was done meanwhile."""
    chain = tx.chain(key.mailbox_id)
    if chain is None or chain.head is None or chain.has_seen(head):
        return None
    dot = tx.next_dot()
    if isinstance(branch, TreeState):
        tree = reading.tree_state(tx.connection, key.user, chain)
        merged_tree = merge_trees(tree, branch)
        change: Merge | TreeMerge = tree_difference(merged_tree, (tree, branch))
        modseq = merged_tree.modseq
    else:
        ours = MailboxState(
            chain.uidnext,
            chain.highestmodseq,
            dict(chain.context),
            {row.uid: row for row in reading.mailbox_rows(tx.connection, key.mailbox_id)},
        )
        merged = merge(ours, branch, dot)
        change, modseq = difference(merged, (ours, branch)), merged.modseq
    entry = tx.next_entry(key.mailbox_id, key.user, key.uidvalidity, [change])
    entry = Entry(entry.dot, (chain.head, head), entry.time, modseq, *key, (change,))
    assert entry.dot == dot
    tx.append(entry, [], applied=True)
    apply_and_release(tx, entry)
    return dot
