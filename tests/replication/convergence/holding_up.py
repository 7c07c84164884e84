"""Delays for nodes that become equal to others."""

from collections.abc import Callable, Sequence

import pytest
import trio

from protocol.values import Context
from replicator.errors import UnavailableError
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.convergence.state_transfer import StateTransfer
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey


def end_transfers_late(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Let state transfers show what they have adopted, but end only after the returned event."""
    end, goes_on = StateTransfer._begin_log_after, trio.Event()

    async def end_late(
        transfer: StateTransfer, passed: Context, left: Sequence[queries.MailboxKey], *, is_proof: bool
    ) -> None:
        await goes_on.wait()
        await end(transfer, passed, left, is_proof=is_proof)

    monkeypatch.setattr(StateTransfer, "_begin_log_after", end_late)
    return goes_on


def keep_busy(monkeypatch: pytest.MonkeyPatch, mailbox_id: bytes, sid: str) -> Callable[[], None]:
    """Let every comparison of the mailbox fail at the node, as if it changed too fast, until the result is called."""
    reconcile, is_busy = Reconciliation.reconcile, True

    async def reconcile_or_refuse(self: Reconciliation, key: MailboxKey, peer: str) -> Outcome:
        if is_busy and key.mailbox_id == mailbox_id and self._mastership.sid == sid:
            await trio.lowlevel.checkpoint()
            raise UnavailableError("changes faster than it can be compared")
        return await reconcile(self, key, peer)

    def rest() -> None:
        nonlocal is_busy
        is_busy = False

    monkeypatch.setattr(Reconciliation, "reconcile", reconcile_or_refuse)
    return rest
