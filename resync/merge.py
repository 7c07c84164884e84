"""Joining two branches of a mailbox's history (design section 3).

The one rule for a fork, for a repair on demand and for the batch. It is symmetric but for the name of the merge
itself. Membership goes by context: a placement that only one side holds stays, unless the other has seen and so
expunged it. Each flag goes by its last stamp. A UID stays only if it breaks no promise of either side: each must
have known its claim, or find it at or above its UIDNEXT; the others get new UIDs above both.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.values import Dot
from resync.entry import Merge
from resync.row import FlagStates, Row
from resync.state import MailboxState, placement


def merge(ours: MailboxState, theirs: MailboxState, dot: Dot) -> MailboxState:
    """The state that has seen both. `dot` names the merge, which is not yet in its context."""
    merged = MailboxState(
        uidnext=max(ours.uidnext, theirs.uidnext),
        modseq=max(ours.modseq, theirs.modseq) + 1,
        context={
            origin: max(ours.context.get(origin, 0), theirs.context.get(origin, 0))
            for origin in ours.context.keys() | theirs.context.keys()
        },
    )
    survivors = _survivors(ours, theirs, merged.modseq)
    unique = _one_of_each_guid(survivors, merged.modseq)
    for row in sorted(unique, key=_age):
        if _misleads(row, ours) or _misleads(row, theirs):
            merged.rows[merged.uidnext] = row._replace(uid=merged.uidnext, claim=dot, modseq=merged.modseq)
            merged.uidnext += 1
        else:
            merged.rows[row.uid] = row
    return merged


def difference(merged: MailboxState, sides: Iterable[MailboxState]) -> Merge:
    """What takes each of the sides to the merged state: the absolute rows of all that differs."""
    changed: dict[int, Row] = {}
    removed: set[bytes] = set()
    kept = {row.guid for row in merged.rows.values()}
    for side in sides:
        changed |= {uid: row for uid, row in merged.rows.items() if side.rows.get(uid) != row}
        removed |= {row.guid for row in side.rows.values()} - kept
    context = tuple(Dot(origin, seq) for origin, seq in sorted(merged.context.items()))
    return Merge(merged.uidnext, context, tuple(changed[uid] for uid in sorted(changed)), tuple(sorted(removed)))


def _survivors(ours: MailboxState, theirs: MailboxState, modseq: int) -> list[Row]:
    left = {placement(row): row for row in ours.rows.values()}
    right = {placement(row): row for row in theirs.rows.values()}
    found = []
    for key in left.keys() | right.keys():
        mine, other = left.get(key), right.get(key)
        if mine is not None and other is not None:
            found.append(mine if mine == other else _join(mine, other, ours, theirs)._replace(modseq=modseq))
        elif mine is not None and not theirs.has_seen(mine.dot):
            found.append(mine._replace(modseq=modseq))
        elif other is not None and not ours.has_seen(other.dot):
            found.append(other._replace(modseq=modseq))
    return found


def _join(mine: Row, other: Row, ours: MailboxState, theirs: MailboxState) -> Row:
    """One placement that both sides hold: the number of the side that knows the other's claim, all flags."""
    i_know, they_know = ours.has_seen(other.claim), theirs.has_seen(mine.claim)
    if i_know != they_know:
        winner = mine if i_know else other
    else:
        winner = max(mine, other, key=lambda row: (row.uid, row.claim))
    return winner._replace(flags=_last(mine.flags, other.flags))


def _last(one: FlagStates, other: FlagStates) -> FlagStates:
    return {flag: max(state for state in (one.get(flag), other.get(flag)) if state) for flag in {**one, **other}}


def _one_of_each_guid(survivors: list[Row], modseq: int) -> list[Row]:
    """A mailbox holds a GUID once: the earlier placement stays, with the flags of both."""
    by_guid: dict[bytes, Row] = {}
    for row in sorted(survivors, key=_age):
        first = by_guid.get(row.guid)
        if first is None:
            by_guid[row.guid] = row
        else:
            by_guid[row.guid] = first._replace(flags=_last(first.flags, row.flags), modseq=modseq)
    return list(by_guid.values())


def _misleads(row: Row, side: MailboxState) -> bool:
    """Whether a client of this side could have seen, or been promised, another message under the row's UID."""
    return not side.has_seen(row.claim) and row.uid < side.uidnext


def _age(row: Row) -> tuple[int, str, int]:
    return row.dot.seq, row.dot.origin, row.change
