"""Of what kind it is that two nodes show of one mailbox or folder tree differently (design section 7).

`replicator resync` tells operators by these kinds what it has found. They follow from the rule of `merge`: a message is
missing at a side if joining the two would bring it there, and expunged at the other one if it would take it away. One
message may be of several kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

from protocol.values import Context, Dot
from resync.bulk import Item
from resync.entry import FolderState
from resync.merge import merge
from resync.row import Row
from resync.state import MailboxState, placement

T = TypeVar("T")

_JOINED = Dot("", 1)  # names no entry: what the two sides would be joined by


class Kind(StrEnum):
    """Of messages, but for the last two; of a tree's folders and subscriptions where it says so."""

    MISSING_HERE = "missing_here"  # also of a tree
    MISSING_THERE = "missing_there"
    EXPUNGED_HERE = "expunged_here"  # of a tree: folders that were deleted on one side
    EXPUNGED_THERE = "expunged_there"
    UID = "uid_conflict"  # shown under a UID that it cannot keep; of a tree: a UIDVALIDITY
    FLAGS = "flags"
    MODSEQ = "modseq"  # or a claim, and nothing that clients see
    RENAMED = "renamed"  # folders only
    SUBSCRIPTION = "subscription"
    CONTEXT = "context"  # the same is shown, but of another history; counts 1
    DAMAGE = "damage"  # one history, and yet not one state: no merge can tell what is right


@dataclass(frozen=True, slots=True)
class Side:
    """A head's numbers. `rows`: at least all that the other side has otherwise, or has not, by their keys."""

    head: Dot | None
    uidnext: int
    modseq: int
    context: Context
    rows: Mapping[bytes, Item] = field(repr=False)
    risen: int = 0

    def has_seen(self, dot: Dot) -> bool:
        """Whether the entry is part of this side's history."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def mailbox(self) -> MailboxState:
        """As far as rows are given."""
        rows = {row.uid: row for row in self.rows.values() if isinstance(row, Row)}
        return MailboxState(self.uidnext, self.modseq, dict(self.context), rows, self.risen)


class Differing(NamedTuple):
    """What two sides show differently: kinds by the keys of rows, and how much there is of each kind."""

    by_row: dict[bytes, frozenset[Kind]]
    by_kind: Counter[Kind]


def differing(ours: Side, theirs: Side) -> Differing:
    """Of no kind if and only if both show the same of one history."""
    by_row = kinds(ours, theirs)
    if ours.head == theirs.head or ours.context == theirs.context:
        is_same = not by_row and _numbers(ours) == _numbers(theirs)
        return Differing(by_row, Counter({} if is_same else {Kind.DAMAGE: max(1, len(by_row))}))
    return Differing(by_row, count(by_row) or Counter({Kind.CONTEXT: 1}))


def count(by_row: Mapping[bytes, Iterable[Kind]]) -> Counter[Kind]:
    """How many rows there are of each kind, in the order of kinds."""
    counted = Counter(kind for some in by_row.values() for kind in some)
    return Counter({kind: counted[kind] for kind in Kind if counted[kind]})


def kinds(ours: Side, theirs: Side) -> dict[bytes, frozenset[Kind]]:
    """What differs, by the keys of rows. CONTEXT is never among it, and DAMAGE only what no two histories can hold."""
    keys = ours.rows.keys() | theirs.rows.keys()
    differing = [key for key in keys if ours.rows.get(key) != theirs.rows.get(key)]
    merged = merge(ours.mailbox(), theirs.mailbox(), _JOINED)  # what is equal on both sides has no part in it
    uids = {row.guid: row.uid for row in merged.rows.values()}
    found: dict[bytes, frozenset[Kind]] = {}
    for key in differing:
        mine, other = ours.rows.get(key), theirs.rows.get(key)
        match mine or other:
            case Row():
                some = frozenset(_of_message(_as(Row, mine), _as(Row, other), ours, theirs))
                found[key] = some | _of_uids(mine, other, uids.get(key)) or frozenset({Kind.MODSEQ})
            case FolderState():
                found[key] = frozenset(_of_folder(_as(FolderState, mine), _as(FolderState, other)))
            case _:
                found[key] = frozenset({_of_subscription(mine, other)})
    return found


def has_other_text(mine: Item | None, other: Item | None) -> bool:
    """Whether both are of one message, which no entry gives another text, and have it with different texts."""
    if not isinstance(mine, Row) or not isinstance(other, Row) or placement(mine) != placement(other):
        return False
    return (mine.content_hash, mine.size_bytes) != (other.content_hash, other.size_bytes)


def _numbers(side: Side) -> tuple[object, ...]:
    return side.head, side.uidnext, side.modseq, side.context, side.risen


def _of_message(mine: Row | None, other: Row | None, ours: Side, theirs: Side) -> Iterator[Kind]:
    if mine is None or other is None or placement(mine) != placement(other):
        if mine is not None:
            yield Kind.EXPUNGED_THERE if theirs.has_seen(mine.dot) else Kind.MISSING_THERE
        if other is not None:
            yield Kind.EXPUNGED_HERE if ours.has_seen(other.dot) else Kind.MISSING_HERE
    elif mine[7:] != other[7:]:  # date, size and text, which no entry changes
        yield Kind.DAMAGE
    elif mine.flags != other.flags:
        yield Kind.FLAGS


def _of_uids(mine: Item | None, other: Item | None, merged: int | None) -> frozenset[Kind]:
    shown = {row.uid for row in (mine, other) if isinstance(row, Row)}
    return frozenset({Kind.UID} if merged is not None and shown != {merged} else ())


def _of_folder(mine: FolderState | None, other: FolderState | None) -> Iterator[Kind]:
    if mine is None or other is None:
        yield Kind.MISSING_HERE if mine is None else Kind.MISSING_THERE
        return
    if mine.deleted != other.deleted:
        yield Kind.EXPUNGED_HERE if mine.deleted else Kind.EXPUNGED_THERE
    if mine.uidvalidity != other.uidvalidity:
        yield Kind.UID
    if mine.name != other.name or (mine.deleted, mine.uidvalidity) == (other.deleted, other.uidvalidity):
        yield Kind.RENAMED


def _of_subscription(mine: Item | None, other: Item | None) -> Kind:
    if mine is None:
        return Kind.MISSING_HERE
    return Kind.MISSING_THERE if other is None else Kind.SUBSCRIPTION


def _as(kind: type[T], item: Item | None) -> T | None:
    return item if isinstance(item, kind) else None
