"""Merge two branches of a mailbox's history (design section 3).

This one rule serves a fork, a repair on demand and the batch. It is symmetric except for the name of the merge itself.
Membership follows contexts: a placement that only one side holds stays, unless the other side has seen it and so
expunged it. A mailbox holds a GUID once: placements of one GUID become one message, which keeps all of them, and stays
until the last of them is expunged. Each flag follows its latest stamp. A UID stays only if it breaks no promise of
either side: each side must show the message under it, with all its placements, or not have promised the UID to new
mail. All other messages get new UIDs above both UIDNEXTs.

That is `conflict.uid = "renumber"`. With "uidvalidity", as soon as one UID cannot stay, all messages get new UIDs above
both, in the order in which they came into the log, and the UIDVALIDITY rises. So under either rule no UID that was ever
shown is used for another message, and nodes with different settings still agree.

The batch states "renumber" again, as expressions of Spark. Each function that it restates names its counterpart after
"On Spark", which must change with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar, cast

from protocol.values import UID_MAX, Dot, context_dots, covers
from resync.entry import Merge
from resync.row import FlagStates, Row, age
from resync.state import MERGE_HEADROOM, RISEN_MAX, MailboxState, joined

T = TypeVar("T")

GAP_MAX = 1 << 6  # of one conflict: at least 16 of them fit below RISEN_MAX
BYTES_AT_ONCE = 8 << 20  # of one change, roughly: the wire takes literals of 64 MiB
ROW_BYTES, FLAG_BYTES, PLACEMENT_BYTES = 200, 32, 64  # on the wire, roughly, without the names of flags


@dataclass(frozen=True, slots=True)
class Anew:
    """Additional input for `conflict.uid = "uidvalidity"`: a function that returns the time of an entry's stamp.

    It returns None for an entry that is no longer in the log.
    """

    time_of: Callable[[Dot], int | None]


def merge(ours: MailboxState, theirs: MailboxState, dot: Dot, anew: Anew | None = None) -> MailboxState:
    """Return the state that has seen both. `dot` names the merge, which is not yet in its context.

    `anew`: see `Anew`. On Spark: `spark.comparison.pairs.joined` (one message), `spark.comparison.merging._renumbered`
    (new UIDs), `spark.comparison.merging.heads` (the numbers).
    """
    merged = MailboxState(
        uidnext=max(ours.uidnext, theirs.uidnext),
        modseq=max(ours.modseq, theirs.modseq) + 1,
        risen=max(ours.risen, theirs.risen),
        context=joined(ours.context, theirs.context),
    )
    survivors = _survivors(ours, theirs, merged.modseq)
    displaced = [row for row in survivors if _misleads(row, ours) or _misleads(row, theirs)]
    if anew and displaced:
        displaced = _all_in_order(merged, survivors, anew) or displaced
    moved = {row.guid for row in displaced}
    for row in survivors:
        if row.guid not in moved:
            merged.put(row)
    for row in displaced:
        merged.put(row._replace(uid=merged.uidnext, claim=dot, modseq=merged.modseq))
        merged.uidnext += 1
    return merged


def merge_all(states: Sequence[MailboxState]) -> MailboxState:
    """Return the state that has seen all of them: a fold of `merge` under "renumber".

    Raises ValueError if there are none.

    A state that another one covers is skipped, and so are all but the first of equal ones. The others are merged in
    their order. The n-th merge is named `("", n)`, which is in the context from there on.

    On Spark: `spark.comparison.merging.folded`.
    """
    if not states:
        raise ValueError("no states to join")
    branches = [state for place, state in enumerate(states) if not _is_covered(place, states)]
    merged, *others = branches
    for number, state in enumerate(others, start=1):
        merged = merge(merged, state, Dot("", number))
        merged.context[""] = number
    return merged


def _is_covered(place: int, states: Sequence[MailboxState]) -> bool:
    """Return True if another state has seen all that this one has. On Spark: `spark.comparison.mailboxes._branches`."""
    ours = states[place].context
    return any(
        covers(other.context, ours) and (at < place or not covers(ours, other.context))
        for at, other in enumerate(states)
        if at != place
    )


def difference(merged: MailboxState, sides: Iterable[MailboxState]) -> tuple[Merge, ...]:
    """Return the changes that take each side to the merged state: the absolute rows of all that differs.

    There are several changes if the rows are too many for one.
    """
    changed: dict[int, Row] = {}
    removed: set[bytes] = set()
    kept = {row.guid for row in merged.rows.values()}
    for side in sides:
        changed |= {uid: row for uid, row in merged.rows.items() if side.rows.get(uid) != row}
        removed |= {row.guid for row in side.rows.values()} - kept
    context = context_dots(merged.context)
    present = in_parts([changed[uid] for uid in sorted(changed)], _weight)
    gone = in_parts(sorted(removed), len)
    return tuple(
        Merge(merged.uidnext, merged.risen, context, tuple(some), tuple(others))
        for some, others in zip_longest(present, gone, fillvalue=())
    ) or (Merge(merged.uidnext, merged.risen, context, (), ()),)


def in_parts(items: Sequence[T], weight: Callable[[T], int]) -> list[list[T]]:
    """Split the items, in order, into parts none of which is much heavier than `BYTES_AT_ONCE`."""
    parts: list[list[T]] = []
    room = 0
    for item in items:
        if room <= 0:
            parts.append([])
            room = BYTES_AT_ONCE
        parts[-1].append(item)
        room -= weight(item)
    return parts


def _weight(row: Row) -> int:
    return ROW_BYTES + sum(FLAG_BYTES + len(flag) for flag in row.flags) + PLACEMENT_BYTES * len(row.also)


def _survivors(ours: MailboxState, theirs: MailboxState, modseq: int) -> list[Row]:
    """Return the messages that stay, by age."""
    left = {row.guid: row for row in ours.rows.values()}
    right = {row.guid: row for row in theirs.rows.values()}
    found: list[Row] = []
    for guid in left.keys() | right.keys():
        mine, other = left.get(guid), right.get(guid)
        if mine is not None and mine == other:
            found.append(mine)
        elif (row := _of_both(mine, other, ours, theirs)) is not None:
            found.append(row._replace(modseq=modseq))
    return sorted(found, key=lambda row: age((row.dot, row.change)))


def _of_both(mine: Row | None, other: Row | None, ours: MailboxState, theirs: MailboxState) -> Row | None:
    """Return the merged row of a message that the sides show differently; None: its last placement is expunged.

    The save date comes with the row that gives the UID, so that no UID changes its date.

    On Spark: `spark.comparison.pairs._stay` (placements), `spark.comparison.pairs._is_ours` (whose row),
    `spark.comparison.pairs._survivor` (its columns).
    """
    here, there = (row.placements() if row else () for row in (mine, other))
    ours_stay = {one for one in here if one in there or not theirs.has_seen(one[0])}
    theirs_stay = {one for one in there if one in here or not ours.has_seen(one[0])}
    if not ours_stay | theirs_stay:
        return None
    (dot, change), *also = sorted(ours_stay | theirs_stay, key=age)
    if mine is None or not ours_stay:
        row = cast("Row", other)
    elif other is None or not theirs_stay:
        row = mine
    else:
        if ours_stay & theirs_stay:
            row = _of_later_claim(mine, other, ours, theirs)
        else:
            row = mine if (dot, change) in ours_stay else other
        row = row._replace(flags=_last(mine.flags, other.flags))
    return row._replace(dot=dot, change=change, also=tuple(also))


def _of_later_claim(mine: Row, other: Row, ours: MailboxState, theirs: MailboxState) -> Row:
    """Return the row whose UID counts, of two that share a placement: that of the side that knows the other's claim.

    On Spark: `spark.comparison.pairs._ours_wins`.
    """
    i_know, they_know = ours.has_seen(other.claim), theirs.has_seen(mine.claim)
    if i_know != they_know:
        return mine if i_know else other
    return max(mine, other, key=lambda row: (row.uid, row.claim))


def _last(one: FlagStates, other: FlagStates) -> FlagStates:
    """Return each flag in the state of its later stamp. On Spark: `spark.comparison.pairs.last`."""
    return {flag: max(state for state in (one.get(flag), other.get(flag)) if state) for flag in {**one, **other}}


def _misleads(row: Row, side: MailboxState) -> bool:
    """Return True if a client of this side could take the row's UID for another message's.

    A side that shows the message under this UID is misled by a placement that is new to it: a client that expunges the
    UID meanwhile has not seen that one. On Spark: `spark.comparison.pairs._misleads`.
    """
    shown = side.message(row.guid)
    if shown is not None and (shown.uid, shown.claim) == (row.uid, row.claim):
        return not set(row.placements()) <= set(shown.placements())
    return row.uid < side.uidnext


def _all_in_order(merged: MailboxState, survivors: Iterable[Row], anew: Anew) -> list[Row]:
    """Return all messages in log order, by the stamps of the entries that added them, and raise the UIDVALIDITY.

    The list is empty if there is no room for that any more; the caller then gives out single new UIDs.
    """
    in_order = sorted(survivors, key=lambda row: _turn(row, anew.time_of(row.dot)))
    risen = merged.risen + _gap(in_order)
    if risen > RISEN_MAX or merged.uidnext + len(in_order) > UID_MAX - MERGE_HEADROOM:
        return []
    merged.risen = risen
    return in_order


def _turn(row: Row, time: int | None) -> tuple[int | str, ...]:
    """Return a sort key for log order.

    Messages whose entry has left the log precede all others, in the order of UIDs.
    """
    return (0, row.uid) if time is None else (1, time, row.dot.sid, *age((row.dot, row.change)))


def _gap(in_log_order: Iterable[Row]) -> int:
    """Return how far UIDs of messages that come out of order in the log lie below their turn in total: 1 to GAP_MAX."""
    gap, turn = 0, 1
    for row in in_log_order:
        gap += max(0, turn - row.uid)
        turn = max(turn, row.uid) + 1
    return max(1, min(gap, GAP_MAX))
