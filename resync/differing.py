"""Classify the differences between two nodes' states of one mailbox or folder tree (design section 7).

`replicator resync` reports its findings to operators by these kinds. They follow from the rule of `merge`: a message is
missing at a side if a merge would add it there, and expunged at the other side if a merge would remove it. One message
may be of several kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

from protocol.values import Context, Dot
from resync.bulk import Item
from resync.entry import AnnotationState, FolderState
from resync.merge import merge
from resync.row import Row, shares_placement
from resync.state import MailboxState

T = TypeVar("T")

_JOINED = Dot("", 1)  # a made-up name for the merge of the two sides


class DifferenceKind(StrEnum):
    """Kinds of differences between messages, except for the last two.

    Some also apply to a tree's folders, subscriptions and annotations.
    """

    MISSING_HERE = "missing_here"  # also in a tree
    MISSING_THERE = "missing_there"
    EXPUNGED_HERE = "expunged_here"  # in a tree: a folder deleted on one side
    EXPUNGED_THERE = "expunged_there"
    UID = "uid_conflict"  # shown under a UID that it cannot keep; in a tree: a UIDVALIDITY
    FLAGS = "flags"
    MODSEQ = "modseq"  # or the claim: a difference that clients do not see
    RENAMED = "renamed"  # folders only
    SUBSCRIPTION = "subscription"
    ANNOTATION = "annotation"
    CONTEXT = "context"  # the same rows with different histories; counts as 1
    DAMAGE = "damage"  # one history with two states: no merge can tell which one is right


@dataclass(frozen=True, slots=True)
class Side:
    """One side's head and its numbers.

    `rows`: at least all rows that the other side lacks or has differently, by key.
    """

    head: Dot | None
    uidnext: int
    modseq: int
    context: Context
    rows: Mapping[bytes, Item] = field(repr=False)
    risen: int = 0
    history: bytes = b""

    def has_seen(self, dot: Dot) -> bool:
        """Return True if the entry is part of this side's history."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def mailbox(self) -> MailboxState:
        """Return the mailbox's state, with the rows that are given."""
        rows = {row.uid: row for row in self.rows.values() if isinstance(row, Row)}
        return MailboxState(self.uidnext, self.modseq, dict(self.context), rows, self.risen)


class Differing(NamedTuple):
    """The differences between two sides: the kinds by the keys of rows, and the number of rows of each kind."""

    by_row: dict[bytes, frozenset[DifferenceKind]]
    by_kind: Counter[DifferenceKind]


def differing(ours: Side, theirs: Side) -> Differing:
    """Compare two sides. The result has no kinds if and only if both show the same state of one history."""
    by_row = kinds(ours, theirs)
    if ours.head == theirs.head or ours.context == theirs.context:
        is_same = not by_row and _numbers(ours) == _numbers(theirs)
        if is_same and ours.history != theirs.history:
            return Differing(by_row, Counter({DifferenceKind.CONTEXT: 1}))
        return Differing(by_row, Counter({} if is_same else {DifferenceKind.DAMAGE: max(1, len(by_row))}))
    return Differing(by_row, count(by_row) or Counter({DifferenceKind.CONTEXT: 1}))


def count(by_row: Mapping[bytes, Iterable[DifferenceKind]]) -> Counter[DifferenceKind]:
    """Return the number of rows of each kind, in the order of kinds."""
    counted = Counter(kind for some in by_row.values() for kind in some)
    return Counter({kind: counted[kind] for kind in DifferenceKind if counted[kind]})


def kinds(ours: Side, theirs: Side) -> dict[bytes, frozenset[DifferenceKind]]:
    """Return the kinds of differences by the keys of rows.

    CONTEXT never occurs, and DAMAGE only for differences that no two valid histories can have. On Spark, of messages:
    `spark.comparison.messages.kinds`.
    """
    keys = ours.rows.keys() | theirs.rows.keys()
    differing = [key for key in keys if ours.rows.get(key) != theirs.rows.get(key)]
    merged = merge(ours.mailbox(), theirs.mailbox(), _JOINED)  # rows that are equal on both sides take no part in it
    uids = {row.guid: row.uid for row in merged.rows.values()}
    found: dict[bytes, frozenset[DifferenceKind]] = {}
    for key in differing:
        mine, other = ours.rows.get(key), theirs.rows.get(key)
        match mine or other:
            case Row():
                some = frozenset(_of_message(_as(Row, mine), _as(Row, other), ours, theirs))
                found[key] = some | _of_uids(mine, other, uids.get(key)) or frozenset({DifferenceKind.MODSEQ})
            case FolderState():
                found[key] = frozenset(_of_folder(_as(FolderState, mine), _as(FolderState, other)))
            case AnnotationState():
                found[key] = frozenset({_of_register(mine, other, DifferenceKind.ANNOTATION)})
            case _:
                found[key] = frozenset({_of_register(mine, other, DifferenceKind.SUBSCRIPTION)})
    return found


def has_other_body(mine: Item | None, other: Item | None) -> bool:
    """Return True if both rows share a placement but name different bodies, which no entry can cause."""
    if not isinstance(mine, Row) or not isinstance(other, Row) or not shares_placement(mine, other):
        return False
    return (mine.content_hash, mine.size_bytes) != (other.content_hash, other.size_bytes)


def _numbers(side: Side) -> tuple[object, ...]:
    return side.head, side.uidnext, side.modseq, side.context, side.risen


def _of_message(mine: Row | None, other: Row | None, ours: Side, theirs: Side) -> Iterator[DifferenceKind]:
    if mine is None or other is None or not shares_placement(mine, other):
        if mine is not None:
            yield DifferenceKind.EXPUNGED_THERE if _has_seen_all(theirs, mine) else DifferenceKind.MISSING_THERE
        if other is not None:
            yield DifferenceKind.EXPUNGED_HERE if _has_seen_all(ours, other) else DifferenceKind.MISSING_HERE
    elif mine[7:10] != other[7:10]:  # date, size and body, which no entry changes
        yield DifferenceKind.DAMAGE
    elif mine.flags != other.flags:
        yield DifferenceKind.FLAGS


def _has_seen_all(side: Side, row: Row) -> bool:
    """Return True if the side has seen all placements of the row. On Spark: `spark.comparison.messages._seen`."""
    return all(side.has_seen(dot) for dot, _ in row.placements())


def _of_uids(mine: Item | None, other: Item | None, merged: int | None) -> frozenset[DifferenceKind]:
    shown = {row.uid for row in (mine, other) if isinstance(row, Row)}
    return frozenset({DifferenceKind.UID} if merged is not None and shown != {merged} else ())


def _of_folder(mine: FolderState | None, other: FolderState | None) -> Iterator[DifferenceKind]:
    if mine is None or other is None:
        yield DifferenceKind.MISSING_HERE if mine is None else DifferenceKind.MISSING_THERE
        return
    if mine.deleted != other.deleted:
        yield DifferenceKind.EXPUNGED_HERE if mine.deleted else DifferenceKind.EXPUNGED_THERE
    if mine.uidvalidity != other.uidvalidity:
        yield DifferenceKind.UID
    if mine.name != other.name or (mine.deleted, mine.uidvalidity) == (other.deleted, other.uidvalidity):
        yield DifferenceKind.RENAMED


def _of_register(mine: Item | None, other: Item | None, changed: DifferenceKind) -> DifferenceKind:
    if mine is None:
        return DifferenceKind.MISSING_HERE
    return DifferenceKind.MISSING_THERE if other is None else changed


def _as(kind: type[T], item: Item | None) -> T | None:
    return item if isinstance(item, kind) else None
