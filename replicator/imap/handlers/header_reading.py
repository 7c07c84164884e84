"""Headers of many messages, read one at a time for SORT and THREAD.

The one place that turns messages into facts of their headers: facts that were kept elsewhere would be looked up here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from protocol.units import KIB
from replicator.errors import ContentUnavailableError
from replicator.imap.ordering.header_facts import NO_FACTS, HeaderFacts
from replicator.imap.session import Session
from replicator.imap.work_meter import WorkMeter
from replicator.view import Message

T = TypeVar("T")

Extract = Callable[[Message, HeaderFacts], T]
"""What is wanted of a message. It uses no state that anything else changes, since it may run in a thread."""

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
    for uid in uids:
        await trio.lowlevel.checkpoint()
        if (message := session.selection.view.messages.get(uid)) is None:
            continue
        try:
            take(await _read(session, message, extract, work, values))
        except ContentUnavailableError:
            unreadable += 1
            take(extract(message, NO_FACTS))
    return unreadable


async def _read(session: Session, message: Message, extract: Extract[T], work: WorkMeter, values: int) -> T:
    parsing = session.services.parsing
    kept = await session.mail.read_body(message)
    async with parsing.opened(kept, with_structure=False) as body:

        def extracted() -> T:
            facts = HeaderFacts(body.header)
            work.spend(values * (1 + facts.size_bytes // KIB))
            return extract(message, facts)

        return await parsing.run(body, extracted, with_structure=False, values=values)


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
