"""Headers of many messages, for SORT and THREAD: in outlines, or else read from the bodies, one at a time.

The one place that turns messages into facts of their headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import trio

from protocol.units import KIB
from replicator.errors import ContentUnavailableError
from replicator.imap.ordering.header_facts import NO_FACTS, HeaderFacts
from replicator.imap.rendering import outline
from replicator.imap.rendering.outline import Outline
from replicator.imap.session import Session
from replicator.imap.work_meter import WorkMeter
from replicator.mime.header import Header
from replicator.view import Message

T = TypeVar("T")

Extract = Callable[[Message, HeaderFacts], T]
"""Finder of what is wanted of a message. It uses no state that anything else changes, since it may run in a thread."""

OUTLINES_AT_ONCE = 100  # messages; what is wanted of them takes some milliseconds to find, in a thread
ROWS_AT_ONCE = 1000  # messages whose headers are not needed, in a millisecond or two


async def read_headers(
    session: Session,
    uids: Sequence[int],
    extract: Extract[T],
    take: Callable[[T], object],
    *,
    work: WorkMeter,
    values: int,
) -> int:
    """Give what is wanted of each message, so many values, to `take`. Return the number of those that cannot be read.

    They are taken to have no header. Messages that are gone are left out. Raises WorkExceededError.
    """
    unreadable = 0
    for start in range(0, len(uids), OUTLINES_AT_ONCE):
        present = map(session.selection.view.messages.get, uids[start : start + OUTLINES_AT_ONCE])
        messages = [message for message in present if message is not None]
        outlined = await _outlined(session, messages, extract, work, values)
        for message in messages:
            await trio.lowlevel.checkpoint()
            try:
                known = outlined.get(message.uid)
                take(known[0] if known else await _read(session, message, extract, work, values))
            except ContentUnavailableError:
                unreadable += 1
                take(extract(message, NO_FACTS))
    return unreadable


async def _outlined(
    session: Session, messages: Sequence[Message], extract: Extract[T], work: WorkMeter, values: int
) -> dict[int, tuple[T]]:
    """Return what is wanted of those messages, by UID, that have an outline. Raises WorkExceededError."""
    packed = await session.mail.outlines(messages, outline.VERSION)

    def extracted() -> dict[int, tuple[T]]:
        found: dict[int, tuple[T]] = {}
        for message in messages:
            if (known := Outline.unpack(packed.get(message.content_hash))) is not None:
                found[message.uid] = (_extracted(message, known.header, extract, work, values),)
        return found

    return await session.services.parsing.apart(extracted) if packed else {}


async def _read(session: Session, message: Message, extract: Extract[T], work: WorkMeter, values: int) -> T:
    parsing = session.services.parsing
    with session.reading():
        kept = await session.mail.read_body(message)
        async with parsing.opened(kept, with_structure=False) as body:
            extracted = partial(_extracted, message, body.header, extract, work, values)
            return await parsing.run(body, extracted, with_structure=False, values=values)


def _extracted(message: Message, header: Header, extract: Extract[T], work: WorkMeter, values: int) -> T:
    facts = HeaderFacts(header)
    work.spend(values * (1 + facts.size_bytes // KIB))
    return extract(message, facts)


async def rows_alone(session: Session, uids: Sequence[int], extract: Extract[T], work: WorkMeter) -> list[T]:
    """Return what is wanted of each message, without its header. Messages that are gone are left out."""
    extracted = list[T]()
    for start in range(0, len(uids), ROWS_AT_ONCE):
        await trio.lowlevel.checkpoint()
        some = uids[start : start + ROWS_AT_ONCE]
        work.spend(len(some))
        messages = map(session.selection.view.messages.get, some)
        extracted.extend(extract(message, NO_FACTS) for message in messages if message is not None)
    return extracted
