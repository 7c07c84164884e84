"""Stepping to a head without the entries that lead there, as another node shows it (design section 7).

An adoption is told as a MERGE of all that differs, under the name of the head, and is in no log. It is for a node that
is merely behind: what it has seen, the other one has seen too. So nothing that it has shown or promised is taken back;
whatever would be is refused, and so is what does not lead to the state that the other node says it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.values import Dot
from replicator.errors import HistoryError
from replicator.store import history
from replicator.store.apply import apply, apply_waiting
from replicator.store.chain import Chain
from replicator.store.reading import MailboxKey
from replicator.store.transaction import Transaction
from resync.entry import Entry, FolderState, Merge, SubscriptionState, TreeMerge


class DamageError(Exception):
    """What this node shows is not what follows from its head, or what another one shows is not."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A step from this node's head, `base`, to `theirs`. `change`: all that they show differently."""

    key: MailboxKey
    base: Dot | None
    theirs: Chain
    change: Merge | TreeMerge

    def entry(self) -> Entry:
        """The step, told as an entry."""
        key, theirs = self.key, self.theirs
        assert theirs.head is not None
        time = max((1, *_times(self.change)))
        return Entry(
            theirs.head, (), time, theirs.highestmodseq, key.user, key.mailbox_id, key.uidvalidity, (self.change,)
        )


def adopt(tx: Transaction, adoption: Adoption) -> bool:
    """Step to the other node's head. False: this node has gone on since.

    Raises HistoryError for a step that no node can make; DamageError, which undoes all, if it does not lead there.
    """
    key, entry = adoption.key, adoption.entry()
    chain = tx.chain(key.mailbox_id)
    if (chain.head if chain else None) != adoption.base:
        return False
    wrong = (
        history.why_not_head(history.head_of(entry))
        or history.why_not_shown(adoption.change, Dot(tx.origin, tx.seen(tx.origin)))
        or history.contradiction(tx, chain, entry)
    )
    if wrong:
        raise HistoryError(f"a mailbox is not taken over at {entry.dot}: {wrong}")
    tx.observe(entry.time)
    apply(tx, entry, in_log=False)
    shown = tx.chain(key.mailbox_id)
    assert shown is not None
    if shown.digest() != adoption.theirs.digest():
        raise DamageError(f"a mailbox comes out otherwise than another node shows it at {entry.dot}")
    apply_waiting(tx, key.mailbox_id)
    return True


def _times(change: Merge | TreeMerge) -> list[int]:
    if isinstance(change, Merge):
        return [time for row in change.rows for time, _, _ in row.flags.values()]
    named: tuple[FolderState | SubscriptionState, ...] = (*change.folders, *change.subscriptions)
    return [one.time for one in named]
