"""Bodies read for FETCH, one slice of messages at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, tee
from typing import NamedTuple, TypeAlias

import trio

from protocol.units import KIB, MIB
from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.messages.binary import measured
from replicator.imap.handlers.messages.fetch_plan import FetchPlan, NamedItems
from replicator.imap.handlers.messages.named_messages import MESSAGES_BETWEEN_CHECKPOINTS
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.rendering.fetch_answers import ParsedBody, fetch_value
from replicator.imap.session import Session
from replicator.imap.wire.fetch_items import Attribute, Chunk, FetchItem, Printed, Span, Value
from replicator.imap.wire.responses import printed
from replicator.mail.mailstore import BodyReader
from replicator.mail.view import Message

# A slice is marked as seen by one change, so it is also the most that is marked for a client that disconnects.
SLICE_MESSAGES = MESSAGES_BETWEEN_CHECKPOINTS
SLICE_BYTES = MIB  # of bodies in memory, plus one more
BYTES_BETWEEN_CHECKPOINTS = 64 * KIB  # of bodies and answers, which mostly take a millisecond
SLICE_S = 1.0  # limit of reading: messages read so far may be delayed by one distant body, not by many

Values: TypeAlias = list[tuple[bytes, Printed]]
"""Values by the names that answers give them, in the order of the items; FLAGS is filled in when sending."""


class Found(NamedTuple):
    """A message that exists, its body, and the values of the items."""

    number: int
    message: Message
    body: BodyReader
    values: Values


@dataclass(slots=True)
class LeftOut:
    """Messages left out: `gone` counts the expunged ones, `unreadable` lists UIDs whose body no reachable node has."""

    gone: int = 0
    unreadable: list[int] = field(default_factory=list)


async def slices_of(
    session: Session, plan: FetchPlan, numbered: Iterable[tuple[int, int]], left_out: LeftOut
) -> AsyncGenerator[list[Found], None]:
    """Yield the messages of these sequence numbers and UIDs, as many at a time as are told together."""
    (pairs,) = tee(numbered, 1)
    for first in pairs:
        await session.connection.flush()  # reading takes time, and nothing is marked for a client that disconnected
        ahead = await _read_ahead(session, chain((first,), copy(pairs)))
        yield await _read(session, chain((first,), pairs), ahead, left_out, plan)


async def _read_ahead(session: Session, pairs: Iterable[tuple[int, int]]) -> Mapping[bytes, BodyReader]:
    """Read small bodies of the next slice, many at a time. Others are read one by one."""
    present = map(session.selection.view.messages.get, (uid for _, uid in islice(pairs, SLICE_MESSAGES)))
    return await session.mail.read_bodies([message for message in present if message is not None], SLICE_BYTES)


async def _read(
    session: Session,
    pairs: Iterable[tuple[int, int]],
    ahead: Mapping[bytes, BodyReader],
    left_out: LeftOut,
    plan: FetchPlan,
) -> list[Found]:
    """Read the next slice. `pairs`: sequence numbers and UIDs."""
    messages = session.selection.view.messages
    some = list[Found]()
    size_bytes, paused_at, deadline = 0, 0, trio.current_time() + SLICE_S
    for number, uid in islice(pairs, SLICE_MESSAGES):
        if (message := messages.get(uid)) is None:
            left_out.gone += 1
            continue
        try:
            body = ahead.get(message.content_hash)
            values = None if body is None else _said_at_once(session.services.parsing, plan, message, body)
            if body is None or values is None:
                with session.reading():
                    body = body or await session.mail.read_body(message)
                    values = await _said(session, plan, message, body)
            some.append(Found(number, message, body, values))
            said_bytes = sum(len(chunk) for chunk in _chunks(values) if isinstance(chunk, bytes))
            size_bytes += max(said_bytes, len(body.skeleton.raw))
        except ContentUnavailableError:
            left_out.unreadable.append(uid)
        if size_bytes - paused_at >= BYTES_BETWEEN_CHECKPOINTS or not plan.is_quick:
            paused_at = size_bytes
            await trio.lowlevel.checkpoint()
        if size_bytes >= SLICE_BYTES or trio.current_time() >= deadline:
            break
    return some


def _said_at_once(parsing: Parsing, plan: FetchPlan, message: Message, body: BodyReader) -> Values | None:
    """Return the values of the items if the body is here whole and small, as most are; else None."""
    parsed = parsing.small(body, with_structure=plan.with_structure or plan.previews, values=plan.values)
    if parsed is None:
        return None
    values = _printed_values(plan.items, message, parsed)
    return values if all(isinstance(chunk, bytes) for chunk in _chunks(values)) else None


async def _said(session: Session, plan: FetchPlan, message: Message, body: BodyReader) -> Values:
    """Return the values of the items, and check that octets to be sent later can be read, before the message is marked.

    Once the length of octets has been told, the client waits until it has them all. So where reading has a limit, they
    are read here, and again to send them: those that do not come in time are not begun. Raises ContentUnavailableError.
    """
    parsing = session.services.parsing
    async with parsing.opened(body, with_structure=plan.with_structure, with_preview=plan.with_preview) as parsed:
        work = partial(_printed_values, plan.items, message, parsed)
        values = await parsing.run(
            parsed, work, with_structure=plan.with_structure or plan.previews, values=plan.values
        )
    for chunk in _chunks(values):
        if isinstance(chunk, Span):
            if session.reading_has_a_limit:
                await _read_through(body, chunk)
            else:
                await body.check(chunk.start, chunk.end)
    return [(name, await measured(value, body)) for name, value in values]


async def _read_through(body: BodyReader, span: Span) -> None:
    async with aclosing(body.read(span.start, span.end)) as octets:
        async for _ in octets:
            pass


def _printed_values(items: NamedItems, message: Message, body: ParsedBody) -> Values:
    """Return the values of the items. Uses no mutable state, so it may run in a thread."""
    return [(name, printed(_value(item, message, body))) for name, item in items]


def _value(item: FetchItem, message: Message, body: ParsedBody | None) -> Value:
    return None if item is Attribute.FLAGS else fetch_value(item, message, body)


def _chunks(values: Values) -> Iterator[Chunk]:
    return (chunk for _, value in values for chunk in value.chunks)
