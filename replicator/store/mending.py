"""Putting right what a check has found, in the writer's turn.

With `apply`, the only code that writes to the projections. A mailbox or tree is mended only while its row is the one
that was compared: the node has then not changed it since. Whoever has a mended mailbox open is sent away, since what
he has seen may have been damage.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicator.store import chain as chains
from replicator.store.apply import apply_waiting
from replicator.store.chain import Chain
from replicator.store.check import Comparison, Damage, exhausted, stored_chain
from replicator.store.past import Base
from replicator.store.transaction import Transaction

_SHOWN = {"by_uid", "chain", "folder"}
"""The tables that clients see something of."""


def mend(tx: Transaction, comparison: Comparison) -> bool:
    """Make the mailbox or tree what the log says. False: it has gone on, and is to be compared again."""
    tx.write_chains()
    if stored_chain(tx.connection, comparison.chain_id) != comparison.stored:
        return False
    mend_strays(tx, comparison.damages)
    if comparison.chain is not None and any(damage.kind == "chain" for damage in comparison.damages):
        _set_chain(tx, comparison.chain)
    elif comparison.chain is not None and comparison.chain.head is not None:
        apply_waiting(tx, comparison.chain_id)  # entries that could not change what was damaged
    return True


def compare_and_mend(tx: Transaction, chain_id: bytes, base: Base | None = None, *, doubted: bool) -> Comparison:
    """Both at once, while the writer waits: for a mailbox that never stands still."""
    tx.write_chains()
    comparison = exhausted(Comparison(tx.connection, chain_id, doubted, base))
    mend(tx, comparison)
    return comparison


def mend_strays(tx: Transaction, damages: Sequence[Damage]) -> None:
    """Run what mends these, which is to be right whatever has changed since."""
    tx.write_chains()
    retired: dict[bytes, None] = {}
    for damage in damages:
        for sql, values in damage.mends:
            tx.connection.execute(sql, values)
        if damage.mailbox_id is not None and damage.kind in _SHOWN and damage.can_be_mended:
            retired[damage.mailbox_id] = None
        if damage.mailbox_id is not None and damage.kind == "chain":
            tx.memory.chains.pop(damage.mailbox_id, None)
    tx.commit.retired += retired
    tx.memory.tree = None


def _set_chain(tx: Transaction, right: Chain) -> None:
    """On disk and, read anew, in the writer's memory. What waited for the right head waits no longer."""
    chains.save(tx.connection, right)
    tx.chain_to_change(right.id, right.user, right.uidvalidity)  # as saved, in the place of what this batch had changed
    apply_waiting(tx, right.id)
