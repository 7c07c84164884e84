"""Steps to another node's head without the entries that lead there (design section 7).

An adoption is expressed as a MERGE of all differences, under the name of the head, and is in no log. It is for a node
that is merely behind, which has seen nothing that the other node has not. So nothing that this node has shown or
promised is taken back: a step that would do so is refused, and so is one that does not lead to the state that the other
node announced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.values import Dot, covers
from replicator.errors import HistoryError
from replicator.store.db import chain as chains
from replicator.store.db import entry_validation, row_counts
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply, apply_waiting
from resync.entry import Entry, Merge, TreeMerge

# For a mailbox that has lost its row: the entries that it had seen, and the UIDNEXT and MODSEQ that were announced.
_SEEN_OF_LOST = """
SELECT origin, seq FROM by_uid WHERE mailbox = ?1
UNION ALL SELECT claim_origin, claim_seq FROM by_uid WHERE mailbox = ?1
UNION ALL SELECT origin, seq FROM checkpoint WHERE chain = ?1
UNION ALL SELECT origin, seq FROM log NOT INDEXED WHERE chain = ?1 AND applied = 1
"""
_GIVEN_OF_LOST = """
SELECT
    (SELECT COALESCE(MAX(uidnext), 0) FROM recent WHERE mailbox = ?1),
    (SELECT COALESCE(MAX(modseq), 0) FROM
        (SELECT modseq FROM by_uid WHERE mailbox = ?1 UNION ALL SELECT modseq FROM unproven WHERE chain = ?1))
"""


class DamageError(Exception):
    """A state shown by this node or another one that does not follow from its head."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A step from this node's head, `base`, to `theirs`. `change` holds all differences between the two states.

    `time`: of a stamp not below any stamp in their state. `is_damaged`: this node's rows do not match its counters, so
    messages may come back below UIDNEXT.
    """

    key: MailboxKey
    base: Dot | None
    theirs: Chain
    change: Merge | TreeMerge
    time: int
    is_damaged: bool = False

    def entry(self) -> Entry:
        """Return the step as an entry."""
        key, theirs = self.key, self.theirs
        assert theirs.head is not None
        time = max((self.time, *_times(self.change)))
        return Entry(
            theirs.head, (), time, theirs.highestmodseq, key.user, key.mailbox_id, key.uidvalidity, (self.change,)
        )


def adopt(tx: Transaction, adoption: Adoption) -> bool:
    """Step to the other node's head. Return False if this node has moved on since the adoption was prepared.

    Raises HistoryError for a step that no node can make; DamageError, which undoes the transaction, if the result is
    not the other node's state.
    """
    key, entry = adoption.key, adoption.entry()
    chain = tx.chain(key.mailbox_id)
    is_lost = chain is None and chains.is_lost(tx.connection, key.mailbox_id)
    if (chain.head if chain else None) != adoption.base:
        return False
    wrong = (
        entry_validation.why_not_head(entry_validation.head_of(entry))
        or entry_validation.why_not_of(tx.connection, chain, key)
        or entry_validation.why_not_shown(adoption.change, Dot(tx.origin, tx.seen(tx.origin)))
        or (
            _goes_back(chain, adoption.theirs)
            if adoption.is_damaged
            else entry_validation.contradiction(tx, chain, entry)
        )
        or (_goes_back_of_lost(tx, adoption.theirs) if is_lost else None)
    )
    if wrong:
        raise HistoryError(f"cannot take over a mailbox at {entry.dot}: {wrong}")
    tx.observe(entry.time)
    if is_lost:
        tx.begin_chain(key.mailbox_id, key.user, key.uidvalidity)
        tx.commit.recounted.add(key.user)
    _forget_pointers(tx, adoption)
    with _collisions_are_damage(entry.dot):
        apply(tx, entry, adopted=adoption.theirs.history)
    shown = tx.chain_to_change(key.mailbox_id, key.user, key.uidvalidity)
    if shown.digest() != adoption.theirs.digest():
        counted = row_counts.count(tx.connection, shown)  # the counters included damaged rows, now repaired
        shown.messages, shown.unseen, shown.size_bytes, shown.fingerprint = counted
        tx.count_anew()
    if shown.digest() != adoption.theirs.digest():
        raise DamageError(f"a mailbox taken over at {entry.dot} differs from what the other node shows")
    if adoption.is_damaged or is_lost:
        tx.count_anew()
        tx.commit.retired.append(key.mailbox_id)  # clients may have seen damaged rows of it
    with _collisions_are_damage(entry.dot):
        apply_waiting(tx, key.mailbox_id)
    return True


@contextmanager
def _collisions_are_damage(head: Dot) -> Iterator[None]:
    """Raise DamageError where rows here, which are damaged, contradict those of another node."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise DamageError(f"rows collide with those of another node at {head}: {error}") from error


def _goes_back(ours: Chain | None, theirs: Chain) -> str | None:
    """Return why the step would take back what this node has announced, or None if it would not."""
    if ours is None:
        return None
    promised = (ours.uidnext, ours.highestmodseq, ours.risen)
    held = all(
        one <= other for one, other in zip(promised, (theirs.uidnext, theirs.highestmodseq, theirs.risen), strict=True)
    )
    return None if held and covers(theirs.context, ours.context) else "it would take back what this node has announced"


def _goes_back_of_lost(tx: Transaction, theirs: Chain) -> str | None:
    """Return why the step would take back what is known of a mailbox whose row is lost, or None if it would not."""
    for origin, seq in tx.connection.execute(_SEEN_OF_LOST, (theirs.id,)):
        if not isinstance(seq, int) or theirs.context.get(origin, 0) < seq:
            return "the other node has not seen everything that this node has shown"
    uidnext, modseq = tx.connection.execute(_GIVEN_OF_LOST, (theirs.id,)).fetchone()
    return (
        "it would take back what this node has announced"
        if uidnext > theirs.uidnext or modseq > theirs.highestmodseq
        else None
    )


def _forget_pointers(tx: Transaction, adoption: Adoption) -> None:
    """Delete `by_guid` rows of arriving messages whose `by_uid` row was lost to damage: they would collide."""
    if isinstance(adoption.change, Merge):
        tx.connection.executemany(
            "DELETE FROM by_guid WHERE guid = ?1 AND mailbox = ?2"
            " AND NOT EXISTS (SELECT 1 FROM by_uid WHERE by_uid.mailbox = ?2 AND by_uid.uid = by_guid.uid)",
            ((row.guid, adoption.key.mailbox_id) for row in adoption.change.rows),
        )


def _times(change: Merge | TreeMerge) -> list[int]:
    if isinstance(change, Merge):
        return [time for row in change.rows for time, _, _ in row.flags.values()]
    return [row.time for row in change.rows()]
