"""Messages that a command names: by sequence numbers, by UIDs, or by the saved result of a search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replicator.imap.session import Completion, Session
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.sequence_set import MessageSet, SavedResult

MANY_RANGES = 500  # of a sequence set; each takes some microseconds, and more than these are resolved in a thread
MESSAGES_BETWEEN_CHECKPOINTS = 100  # about a millisecond of formatting; other connections wait no longer


async def resolved(session: Session, numbers: MessageSet, *, by_uid: bool) -> list[range]:
    """Return runs of the sequence numbers. Raises CommandFailedError if a number is beyond the last message."""
    selection = session.selection
    resolve: Callable[[], list[range] | None]
    if isinstance(numbers, SavedResult):
        resolve, size = partial(selection.numbering.runs_of, selection.saved), len(selection.saved)
    else:
        resolve, size = partial(selection.numbering.resolve, numbers, by_uid=by_uid), len(numbers.ranges)
    # The numbering does not change meanwhile: nothing is announced while a command runs.
    runs = await session.services.parsing.apart(resolve) if size > MANY_RANGES else resolve()
    if runs is None:
        count = len(selection.numbering)
        raise CommandFailedError(f"A number is beyond the last of the {count} messages", condition="BAD")
    return runs


def expunged_elsewhere(done: str, gone: int) -> Completion:
    """Return the end of a command that was carried out for all messages but those that are gone (RFC 5530)."""
    return Completion(f"{done}; {gone} of the messages have been expunged, and NOOP tells which", "EXPUNGEISSUED")
