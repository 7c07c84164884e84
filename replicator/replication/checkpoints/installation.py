"""Installs checkpoints: a node without a mailbox or tree steps to the head that another node's checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.values import Context, context_of
from replicator.store.checkpoints.archive import CheckpointContent
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import MailboxKey
from replicator.store.log.snapshot_install import Adoption
from resync import bulk
from resync import row as rows
from resync.bulk import Item
from resync.entry import Merge, TreeMerge


def adoption_of(head: NamedHead, content: CheckpointContent) -> Adoption:
    """Return the step from an empty chain to the checkpoint's state."""
    change = _joined(content.changes)
    theirs = _chain(head, content.history, context_of(change.context), change)
    return Adoption(MailboxKey.of(head), None, theirs, change, head.time)


def _chain(head: NamedHead, history: bytes, context: Context, change: Merge | TreeMerge) -> Chain:
    """Return the chain at this head, with the numbers that a digest needs."""
    chain = Chain(head.mailbox_id, head.user, head.uidvalidity, head=head.dot, history=history)
    chain.highestmodseq, chain.context = head.modseq, dict(context)
    items: list[Item] = []
    if isinstance(change, Merge):
        chain.uidnext, chain.risen, chain.messages = change.uidnext, change.risen, len(change.rows)
        items += change.rows
    else:
        items += change.rows()
    chain.fingerprint = rows.add(0, *map(bulk.hash_of, items))
    return chain


def _joined(changes: Sequence[Merge | TreeMerge]) -> Merge | TreeMerge:
    """Join the changes of one checkpoint into one."""
    first = changes[0]
    if isinstance(first, Merge):
        return first._replace(rows=tuple(row for change in changes if isinstance(change, Merge) for row in change.rows))
    trees = [change for change in changes if isinstance(change, TreeMerge)]
    return TreeMerge.of(first.context, (row for change in trees for row in change.rows()))
