"""The columns of `by_uid`, and their conversion to and from rows."""

from __future__ import annotations

from typing import cast

import msgpack

from protocol.values import UID_MAX, Dot
from replicator.mail.listing import ListedMessage
from replicator.mail.view import Message
from replicator.store.db.damage import DatabaseDamagedError
from resync import entry as entries
from resync.entry import ID_BYTES
from resync.row import FINGERPRINT_BYTES, FlagStates, Placement, Row, to_bytes

ROW_COLUMNS = (
    "uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, received_ms, size_bytes, content_hash,"
    " also, saved_ms, fingerprint"
)
LISTED_COLUMNS = "uid, guid, modseq, flags, received_ms, saved_ms"
INTO_BY_UID = f"INTO by_uid (mailbox, {ROW_COLUMNS}) VALUES ({','.join('?' * (2 + ROW_COLUMNS.count(',')))})"
"""The end of an INSERT or REPLACE of a mailbox's id and a row's columns."""


class DamagedRowError(DatabaseDamagedError):
    """A stored row that cannot be read because the database is damaged."""

    def __init__(self, what: str, wrong: str = "cannot be read; run `replicator check --repair` at this node") -> None:
        super().__init__(f"{what} {wrong}")


def unpacked_map(packed: object, what: str) -> dict[object, object]:
    """Unpack a column that holds a MessagePack map. Raises DamagedRowError that names `what` it belongs to."""
    try:
        found = msgpack.unpackb(packed, use_list=False)
    except (ValueError, TypeError) as error:
        raise DamagedRowError(what) from error
    if not isinstance(found, dict):
        raise DamagedRowError(what)
    return found


def unpacked_context(packed: object, what: str) -> dict[str, int]:
    """Unpack a column that holds a context. Raises DamagedRowError that names `what` it belongs to."""
    context = unpacked_map(packed, what)
    if not all(isinstance(origin, str) and isinstance(seq, int) for origin, seq in context.items()):
        raise DamagedRowError(what)
    return cast("dict[str, int]", context)


def columns_of(row: Row) -> tuple[object, ...]:
    """Return a row's values for `ROW_COLUMNS`."""
    flags, fingerprint = msgpack.packb(row.flags), to_bytes(row.fingerprint())
    also = msgpack.packb(row.also) if row.also else None
    return (
        row.uid, *row.dot, row.change, row.guid, *row.claim, row.modseq, flags, *row[7:10],
        also, row.saved_ms, fingerprint,
    )  # fmt: skip


def row_from(columns: tuple[object, ...]) -> Row:
    """Build a row from `ROW_COLUMNS`, without checking its fingerprint. Raises DamagedRowError."""
    uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, *rest, also, saved_ms, _ = columns
    if not (isinstance(uid, int) and isinstance(modseq, int)):
        raise DamagedRowError("a message's row")
    return Row(
        uid,
        Dot(cast("str", origin), cast("int", seq)),
        cast("int", change),
        _guid_from(guid),
        Dot(cast("str", claim_origin), cast("int", claim_seq)),
        modseq,
        cast("FlagStates", unpacked_map(flags, "a message's row")),
        *cast("tuple[int, int, bytes]", tuple(rest)),
        () if also is None else placements_from(also),
        cast("int | None", saved_ms),
    )


def placements_from(packed: object) -> tuple[Placement, ...]:
    """Unpack the column `also`. Raises DamagedRowError."""
    try:
        return entries.placements_from(msgpack.unpackb(packed, use_list=False))
    except (ValueError, TypeError) as error:
        raise DamagedRowError("a message's row") from error


def key_from(columns: tuple[object, object]) -> tuple[bytes, int]:
    """Return a row's GUID and its fingerprint as stored with the row. Raises DamagedRowError."""
    return _guid_from(columns[0]), fingerprint_from(columns[1])


def _guid_from(column: object) -> bytes:
    if not isinstance(column, bytes) or len(column) != ID_BYTES:
        raise DamagedRowError("a message's row")
    return column


def fingerprint_from(column: object) -> int:
    """Return a row's fingerprint as stored with the row. Raises DamagedRowError."""
    if not isinstance(column, bytes) or len(column) != FINGERPRINT_BYTES:
        raise DamagedRowError("a message's row")
    return int.from_bytes(column)


def message_of(row: Row) -> Message:
    """Return what a client may see of a row."""
    return Message(
        row.uid, row.guid, row.modseq, row.visible_flags(), row.received_ms, row.size_bytes, row.content_hash,
        row.dot, row.change, row.also, row.saved_ms,
    )  # fmt: skip


def listed_from(columns: tuple[object, ...]) -> ListedMessage:
    """Return what a listing has of a row, from `LISTED_COLUMNS`. Raises DamagedRowError."""
    uid, guid, modseq, flags, received_ms, saved_ms = columns
    if not (
        isinstance(uid, int)
        and 0 < uid <= UID_MAX
        and isinstance(modseq, int)
        and modseq >= 0
        and isinstance(received_ms, int)
        and isinstance(saved_ms, int | None)
    ):
        raise DamagedRowError("a message's row")
    return ListedMessage(uid, _guid_from(guid), modseq, _set_flags(flags), received_ms, saved_ms)


def _set_flags(packed: object) -> frozenset[str]:
    states = cast("FlagStates", unpacked_map(packed, "a message's row"))
    try:
        return frozenset(flag for flag, (_, _, is_set) in states.items() if is_set)
    except (ValueError, TypeError) as error:
        raise DamagedRowError("a message's row") from error
