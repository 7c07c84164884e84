"""Changes, rows and placements as MessagePack, and the checks of what comes from other nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgpack

from protocol.values import Dot, UidSet
from resync.entry.changes import (
    AnnotationState,
    Change,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    Raise,
    SubscriptionState,
    TreeMerge,
)
from resync.row import Placement, Row

T = TypeVar("T")

_CLASSES: dict[str, type[Change]] = {
    "MAIL_ADD": MailAdd,
    "MAIL_DEL": MailDel,
    "FLAG_ADD": FlagAdd,
    "FLAG_DEL": FlagDel,
    "MERGE": Merge,
    "RAISE": Raise,
    "FOLDER_CREATE": FolderCreate,
    "FOLDER_RENAME": FolderRename,
    "FOLDER_DELETE": FolderDelete,
    "FOLDER_SUBSCRIBE": FolderSubscribe,
    "FOLDER_ANNOTATE": FolderAnnotate,
    "FOLDER_MERGE": TreeMerge,
}
_KINDS = {change: kind for kind, change in _CLASSES.items()}


def pack_change(change: Change) -> bytes:
    """Return one change as MessagePack."""
    return cast("bytes", msgpack.packb(change_values(change)))


def unpack_change(packed: bytes) -> Change:
    """Return the change that `pack_change` packed. Raises ValueError for any other bytes."""
    try:
        kind, *values = msgpack.unpackb(packed, use_list=False)
        return change_from(kind, values)
    except (msgpack.UnpackException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{len(packed)} bytes are not a change of an entry: {error!r}") from error


def pack_values(values: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the values of annotations, by their names, as MessagePack."""
    return cast("bytes", msgpack.packb([*values]))


def unpack_values(packed: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Return the values that `pack_values` packed. Raises ValueError for any other bytes."""
    try:
        return _values(msgpack.unpackb(packed, use_list=False))
    except (msgpack.UnpackException, TypeError, ValueError) as error:
        raise ValueError(f"{len(packed)} bytes are not values of annotations: {error!r}") from error


def _values(values: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(checked((name, value), str, bytes if value is not None else type(None)) for name, value in values)


def change_values(change: Change) -> tuple[object, ...]:
    """Return a change as plain values: its kind, then its fields."""
    if isinstance(change, Merge):
        uidnext, risen, context, rows, removed = change
        return _KINDS[Merge], uidnext, risen, context, [row.packed() for row in rows], removed
    if isinstance(change, TreeMerge) and not change.annotations:
        return (_KINDS[TreeMerge], *change[:-1])  # as before there were annotations
    values = (value.ranges if isinstance(value, UidSet) else value for value in change)
    return (_KINDS[type(change)], *values)


def change_from(kind: str, values: list[Any]) -> Change:
    """Return the change of this kind with these fields, as `change_values` has them. Raises as `row_from` does."""
    change = _CLASSES[kind]
    if change in {MailDel, FlagAdd, FlagDel}:
        values[0] = UidSet(cast("tuple[tuple[int, int], ...]", values[0]))
    elif change is Merge:
        uidnext, risen, context, rows, removed = values
        checked((uidnext, risen, *removed), int, int, *(bytes for _ in removed))
        return Merge(uidnext, risen, _dots(context), tuple(map(row_from, rows)), removed)
    elif change is TreeMerge:
        context, folders, subscriptions, *also = values
        (annotations,) = also or ((),)
        return TreeMerge(
            _dots(context),
            tuple(checked(FolderState(*folder), bytes, str, str, int, bool, int, str) for folder in folders),
            tuple(checked(SubscriptionState(*one), str, str, bool, int, str) for one in subscriptions),
            tuple(map(annotation_from, annotations)),
        )
    elif change is FolderAnnotate:
        mailbox_id, named = values
        return FolderAnnotate(*checked((mailbox_id,), bytes), _values(named))
    return change._make(values)


def _dots(values: Any) -> tuple[Dot, ...]:
    return tuple(checked(Dot(origin, seq), str, int) for origin, seq in values)


def annotation_from(values: Any) -> AnnotationState:
    """Return the row of an annotation that was packed as a tuple. Raises TypeError for any other value."""
    annotation = AnnotationState(*values)
    value = bytes if annotation.value is not None else type(None)
    return checked(annotation, str, bytes, str, value, int, str)


def placements_from(values: Any) -> tuple[Placement, ...]:
    """Return placements that were packed as tuples. Raises TypeError or ValueError for any other value."""
    return tuple((*_dots([dot]), *checked((change,), int)) for dot, change in values)


def row_from(values: Any) -> Row:
    """Return the row that was packed as a tuple. Raises TypeError, ValueError or AttributeError for any other value."""
    uid, dot, change, guid, claim, modseq, flags, received_ms, size_bytes, content_hash, *more = values
    states = {flag: checked(tuple(state), int, str, bool) for flag, state in flags.items()}
    checked(tuple(states), *(str for _ in states))
    placement, claimed = _dots((dot, claim))
    also = placements_from(more[0]) if more else ()
    saved_ms = more[1] if len(more) > 1 else None
    row = Row(
        uid, placement, change, guid, claimed, modseq, states, received_ms, size_bytes, content_hash, also, saved_ms
    )
    if len(values) != len(row.packed()):
        raise ValueError("a row has too many values")
    saved = int if saved_ms is not None else type(None)
    return checked(row, int, Dot, int, bytes, Dot, int, dict, int, int, bytes, tuple, saved)


def checked(values: T, *types: type) -> T:
    """Return the tuple if its members have these types, since it may come from another node. Raises TypeError."""
    if not isinstance(values, tuple) or [type(value) for value in values] != list(types):
        raise TypeError(f"{str(values)[:80]} has values of wrong types")
    return values
