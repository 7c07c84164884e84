"""The last step of numbering: an entry on top of the head that this node shows (design section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protocol.values import Dot
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply
from resync.entry import Change, Entry


def commit(
    tx: Transaction,
    key: MailboxKey,
    changes: Sequence[Change],
    bodies: Sequence[StoredBody] = (),
    *,
    modseq: int | None = None,
) -> Entry:
    """Log an entry with these changes on the head that this node shows, apply it, and return it.

    `modseq`: the MODSEQ that it gives; None: the next one.
    """
    entry = tx.next_entry(key.mailbox_id, key.user, key.uidvalidity, changes)
    if modseq is not None:
        entry = replace(entry, modseq=modseq)
    tx.append(entry, bodies, applied=True)
    apply(tx, entry)
    return entry


def head_of(tx: Transaction, key: MailboxKey) -> Dot | None:
    """Return the head on which a request that changes nothing rests.

    Its client needs that head to be as durable as a change.
    """
    chain = tx.chain(key.mailbox_id)
    return chain.head if chain else None
