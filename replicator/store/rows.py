"""The columns of `by_uid`, and what they mean."""

from __future__ import annotations

from typing import cast

import msgpack

from protocol.values import Dot
from replicator.view import Message
from resync.row import Row

ROW_COLUMNS = (
    "uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, received_ms, size_bytes, content_hash"
)


def columns_of(row: Row) -> tuple[object, ...]:
    """What a row is in `ROW_COLUMNS`."""
    flags = msgpack.packb(row.flags)
    return row.uid, *row.dot, row.change, row.guid, *row.claim, row.modseq, flags, *row[7:]


def row_from(columns: tuple[object, ...]) -> Row:
    """A row from `ROW_COLUMNS`."""
    uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, *rest = columns
    return Row(
        cast("int", uid),
        Dot(cast("str", origin), cast("int", seq)),
        cast("int", change),
        cast("bytes", guid),
        Dot(cast("str", claim_origin), cast("int", claim_seq)),
        cast("int", modseq),
        msgpack.unpackb(flags, use_list=False),
        *cast("tuple[int, int, bytes]", tuple(rest)),
    )


def message_of(row: Row) -> Message:
    """What a client may see of a row."""
    return Message(
        row.uid, row.guid, row.modseq, row.visible_flags(), row.received_ms, row.size_bytes, row.content_hash,
        row.dot, row.change,
    )  # fmt: skip
