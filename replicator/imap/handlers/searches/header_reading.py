"""Headers of many messages, for SEARCH, SORT and THREAD: columns that are in memory, else in outlines, else in bodies.

The one place that turns messages into columns. Messages come in slices that begin at fixed UIDs. So when a message
comes or goes, only its slice is not in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from protocol.units import KIB
from replicator.errors import ContentUnavailableError
from replicator.imap.header_cache import CachedRow, digest_of
from replicator.imap.rendering import outline
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue, made, size_bytes_of
from replicator.imap.rendering.outline import Outline
from replicator.imap.session import Session
from replicator.imap.work_meter import WorkMeter
from replicator.mail.view import Message
from replicator.mime.header import Header

LARGEST_VALUES_BYTES = 128 * KIB
"""Memory that texts of one message, which SEARCH compares, may take in a slice."""

_COUNTED_HERE = 20  # messages whose values are measured in some milliseconds, even if they refer to thousands of others

_NO_HEADER = Header(b"", 0, 0, 0)

_Wanted: TypeAlias = Sequence[Column[ColumnValue]]
_Values: TypeAlias = tuple[ColumnValue, ...]
"""Values of one message, in the order of the columns that are wanted."""


class HeaderSlice(NamedTuple):
    """Messages with columns of their headers.

    `unreadable` and `large` are UIDs of messages that are taken to have no header here: because it cannot be read, or
    because its values are too large.
    """

    messages: Sequence[Message]
    columns: Columns
    unreadable: Collection[int] = ()
    large: Collection[int] = ()


async def read_slice(
    session: Session, uids: Sequence[int], wanted: _Wanted, work: WorkMeter, *, largest_bytes: int | None = None
) -> HeaderSlice:
    """Return columns of the messages of a slice that are still there. Raises WorkExceededError.

    `largest_bytes`: limit of what the values of a message may take, for columns whose values have no limit themselves.
    """
    await trio.lowlevel.checkpoint()
    present = map(session.selection.view.messages.get, uids)
    messages = [message for message in present if message is not None]
    work.spend(len(messages) * max(1, len(wanted)))
    cache, bodies = session.services.headers, digest_of(messages)
    rows = {column: row for column in wanted if (row := cache.get(bodies, column)) is not None}
    if largest_bytes is None:  # then all values must be here
        rows = {column: row for column, row in rows.items() if not row.left_out}
    reading = _Reading(session, [column for column in wanted if column not in rows], work, largest_bytes)
    if reading.wanted:
        new = await reading.rows(messages)
        rows.update(new)
        for column, row in () if reading.unreadable else new.items():
            cache.put(bodies, column, row)
    values = {column: row.values for column, row in rows.items()}
    columns = Columns(values, {column: row.size_bytes for column, row in rows.items()})
    large = {messages[place].uid for row in rows.values() for place in row.left_out}
    return HeaderSlice(messages, columns, reading.unreadable, large)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Making of the columns that are wanted, and which messages of the slice are taken to have no header.

    `unreadable`: UIDs; `large`: places in the slice.
    """

    session: Session
    wanted: _Wanted
    work: WorkMeter
    largest_bytes: int | None
    unreadable: set[int] = field(default_factory=set)
    large: list[int] = field(default_factory=list)

    async def rows(self, messages: Sequence[Message]) -> dict[Column[ColumnValue], CachedRow]:
        """Return the columns, made of outlines and bodies. Raises WorkExceededError."""
        packed = await self.session.mail.outlines(messages, outline.VERSION)
        apart, values = self.session.services.parsing.apart, list[_Values]()

        def outlined() -> list[_Values | None]:
            return [self._outlined(packed.get(message.content_hash)) for message in messages]

        def rows() -> dict[Column[ColumnValue], CachedRow]:
            columns = zip(*values, strict=True) if values else ((),) * len(self.wanted)
            large, found = tuple(self.large), zip(self.wanted, columns, strict=True)
            return {column: CachedRow(row, size_bytes_of(row), large) for column, row in found}

        found = await apart(outlined) if packed else [None] * len(messages)
        for place, told in enumerate(found):
            values.append(told or await self._read(messages[place], place))
        return await apart(rows) if len(messages) > _COUNTED_HERE else rows()

    async def _read(self, message: Message, place: int) -> _Values:
        """Return the values of the message's header, or of an empty one if it is unreadable or has too large values."""
        await trio.lowlevel.checkpoint()
        parsing = self.session.services.parsing
        try:
            with self.session.reading():
                kept = await self.session.mail.read_body(message)
                async with parsing.opened(kept, with_structure=False) as body:
                    make = partial(self._made, body.header)
                    values = await parsing.run(body, make, with_structure=False, values=len(self.wanted))
        except ContentUnavailableError:
            self.unreadable.add(message.uid)
        else:
            if not self._is_large(values):
                return values
            self.large.append(place)
        return self._made(_NO_HEADER)

    def _outlined(self, packed: bytes | None) -> _Values | None:
        known = Outline.unpack(packed)
        if known is None or any(column.field in known.left_out for column in self.wanted):
            return None
        values = self._made(known.header)
        return None if self._is_large(values) else values

    def _is_large(self, values: _Values) -> bool:
        return self.largest_bytes is not None and size_bytes_of(values) > self.largest_bytes

    def _made(self, header: Header) -> _Values:
        return tuple(made(column, header, self.work) for column in self.wanted)
