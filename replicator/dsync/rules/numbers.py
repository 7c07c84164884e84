"""Rules about a mailbox's numbers: which states of earlier syncs count, and which numbers this side cannot have."""

from __future__ import annotations

from replicator.dsync.wire.items import Mailbox, MailboxState
from resync.state import RAISED_MODSEQ_MAX, why_not_raise


def is_stale(own: Mailbox, theirs: Mailbox, state: MailboxState | None) -> bool:
    """Return True if this side is older than the state that the master remembers, or is another mailbox."""
    if state is None or state.last_common_uid == 0:
        return False
    return (
        own.uidvalidity != theirs.uidvalidity
        or own.uidnext < state.last_common_uid
        or own.highestmodseq < state.last_common_modseq
    )


def out_of_range(own: Mailbox, theirs: Mailbox) -> str | None:
    """Return why this side cannot take over the master's numbers; None if it can."""
    if why_not_raise(max(theirs.uidnext, own.uidnext), own.uidnext) is not None:
        return f"its UIDNEXT, {theirs.uidnext}, leaves too few UIDs"
    if theirs.highestmodseq > max(own.highestmodseq, RAISED_MODSEQ_MAX):
        return f"its HIGHESTMODSEQ, {theirs.highestmodseq}, is above {RAISED_MODSEQ_MAX}"
    return None


def in_force(state: MailboxState | None) -> MailboxState | None:
    """Return the state that limits what is compared; None if it says nothing, as of a mailbox that was skipped."""
    return state if state is not None and (state.last_common_uid or state.last_common_modseq) else None
