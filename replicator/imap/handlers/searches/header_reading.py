"""Headers of many messages, for SEARCH, SORT and THREAD: columns that are in memory, else in outlines, else in bodies.

The one place that turns messages into columns. Messages come in slices that begin at fixed UIDs. So when a message
comes or goes, only its slice is not in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from replicator.errors import ContentUnavailableError
from replicator.imap.header_cache import CachedRow, digest
from replicator.imap.rendering import outline
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue, made, size_bytes_of
from replicator.imap.rendering.outline import Outline
from replicator.imap.session import Session
from replicator.imap.work_meter import WorkMeter
from replicator.mime.header import Header
from replicator.view import Message

SLICE_MESSAGES = 250
"""Messages of a slice, on average: few enough that their largest outlines fit in memory, 4 MiB."""

_NO_HEADER = Header(b"", 0, 0, 0)

_Wanted: TypeAlias = Sequence[Column[ColumnValue]]
_Values: TypeAlias = tuple[ColumnValue, ...]
"""Values of one message, in the order of the columns that are wanted."""


class HeaderSlice(NamedTuple):
    """Messages with columns of their headers. `unreadable` are UIDs of those taken to have no header."""

    messages: Sequence[Message]
    columns: Columns
    unreadable: Collection[int]


def slices(uids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the UIDs, which ascend, in slices. Where they lie scattered, a slice spans more of them."""
    sparseness = (uids[-1] - uids[0]) // (2 * len(uids)) if uids else 0  # 0 while more than half of them are there
    span, start = SLICE_MESSAGES << sparseness.bit_length(), 0
    while start < len(uids):
        end = bisect_left(uids, (uids[start] // span + 1) * span, start, min(start + 2 * SLICE_MESSAGES, len(uids)))
        yield uids[start:end]
        start = end


async def read_slice(session: Session, uids: Sequence[int], wanted: _Wanted, work: WorkMeter) -> HeaderSlice:
    """Return columns of the messages of a slice that are still there. Raises WorkExceededError."""
    await trio.lowlevel.checkpoint()
    present = map(session.selection.view.messages.get, uids)
    messages = [message for message in present if message is not None]
    work.spend(len(messages) * max(1, len(wanted)))
    cache, bodies = session.services.headers, digest(message.content_hash for message in messages)
    rows = {column: row for column in wanted if (row := cache.get(bodies, column)) is not None}
    unreadable: Collection[int] = ()
    if missing := [column for column in wanted if column not in rows]:
        new, unreadable = await _made(session, messages, missing, work)
        rows.update(new)
        for column, row in () if unreadable else new.items():
            cache.put(bodies, column, row)
    values = {column: row.values for column, row in rows.items()}
    return HeaderSlice(messages, Columns(values, sum(row.size_bytes for row in rows.values())), unreadable)


async def _made(
    session: Session, messages: Sequence[Message], wanted: _Wanted, work: WorkMeter
) -> tuple[dict[Column[ColumnValue], CachedRow], set[int]]:
    """Return columns made of outlines and bodies, and the UIDs of messages whose header cannot be read."""
    packed = await session.mail.outlines(messages, outline.VERSION)
    apart, unreadable = session.services.parsing.apart, set[int]()

    def outlined() -> list[_Values | None]:
        return [_outlined(packed.get(message.content_hash), wanted, work) for message in messages]

    values = await apart(outlined) if packed else [None] * len(messages)
    known = [
        one or await _read(session, message, wanted, work, unreadable)
        for message, one in zip(messages, values, strict=True)
    ]
    columns = zip(*known, strict=True) if known else ((),) * len(wanted)
    return {column: CachedRow(row, size_bytes_of(row)) for column, row in zip(wanted, columns, strict=True)}, unreadable


def _outlined(packed: bytes | None, wanted: _Wanted, work: WorkMeter) -> _Values | None:
    known = Outline.unpack(packed)
    if known is None or any(column.field in known.left_out for column in wanted):
        return None
    return _values(known.header, wanted, work)


async def _read(session: Session, message: Message, wanted: _Wanted, work: WorkMeter, unreadable: set[int]) -> _Values:
    """Return what the message's body tells. If it cannot be read, add its UID to `unreadable`."""
    await trio.lowlevel.checkpoint()
    parsing = session.services.parsing
    try:
        kept = await session.mail.read_body(message)
        async with parsing.opened(kept, with_structure=False) as body:
            values = partial(_values, body.header, wanted, work)
            return await parsing.run(body, values, with_structure=False, values=len(wanted))
    except ContentUnavailableError:
        unreadable.add(message.uid)
        return _values(_NO_HEADER, wanted, work)


def _values(header: Header, wanted: _Wanted, work: WorkMeter) -> _Values:
    return tuple(made(column, header, work) for column in wanted)
