"""Annotations of a mailbox (RFC 5464): which of the peer's this side takes over.

An annotation is known by whether it is shared, and its name. Its MODSEQ is 0 where nobody knows when it changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replicator.dsync.wire.items import Attribute, MailboxState


def attributes_to_tell(own: Iterable[Attribute], state: MailboxState | None) -> Sequence[Attribute]:
    """Return this side's annotations; with a state, only those that have changed since then."""
    return [one for one in own if state is None or one.modseq > state.last_common_modseq]


def attributes_to_take(
    own: Iterable[Attribute], theirs: Iterable[Attribute], state: MailboxState | None
) -> Sequence[Attribute]:
    """Return those of the peer's that count, and differ from this side's."""
    known = {(one.shared, one.key): one for one in own}
    taken = []
    for one in theirs:
        here = known.get((one.shared, one.key))
        if here is None:
            if one.value is not None:
                taken.append(one)
        elif here.value != one.value and _counts(one, here, state):
            taken.append(one)
    return taken


def _counts(theirs: Attribute, own: Attribute, state: MailboxState | None) -> bool:
    """Return True if the peer's value counts: the one that has changed, or changed later, or else the greater one."""
    if state is not None:
        since = state.last_common_modseq
        changed = theirs.modseq > since, own.modseq > since
        if changed[0] != changed[1]:
            return changed[0]
    return _rank(theirs) > _rank(own)


def _rank(one: Attribute) -> tuple[int, int, bool, str]:
    return one.changed_s, one.modseq, one.value is not None, one.value or ""
