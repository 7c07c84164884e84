"""FETCH of summaries, which rows and outlines tell: many messages at a time, and whole mailboxes without a body.

Values that outlines tell are kept in memory for the next FETCH of the same messages (design section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TypeAlias, cast

import trio

from protocol.units import MIB
from protocol.values import UidSet
from replicator.imap.handlers.messages.fetch_plan import FetchPlan
from replicator.imap.handlers.messages.fetch_reading import LeftOut, slices_of
from replicator.imap.handlers.messages.fetch_telling import tell
from replicator.imap.header_cache import SLICE_MESSAGES, CachedRow, digest_of, slices
from replicator.imap.rendering import outline
from replicator.imap.rendering.header_columns import size_bytes_of
from replicator.imap.rendering.outline import Outline
from replicator.imap.rendering.summaries import Summaries, Told
from replicator.imap.rendering.thread_id import lone_thread
from replicator.imap.session import Session
from replicator.imap.wire.fetch_items import Attribute, BodySection, FetchItem, needs_body, response_name
from replicator.mail.view import Message

ROWS_AT_ONCE = 500
"""Messages that are told at once by their rows alone: about a millisecond."""

VALUES_AT_ONCE = SLICE_MESSAGES
"""Values that are taken from outlines at once: half a millisecond, and at most 4 MiB."""

NAMES_BYTES = MIB
"""Octets of the items' names in the responses that are told at once: a name may be as long as a command."""

LEAST_KEPT = 20
"""Fewest messages whose values are kept in memory: those of a few are as quickly read again."""

MOST_LACKING = 10
"""A row that lacks the values of more than this part of its messages is not kept: their outlines are being made."""

_NAMED_AT_ONCE = 10_000  # messages, whose sequence numbers and UIDs are looked up in a millisecond

_Numbered: TypeAlias = Sequence[tuple[int, Message]]
"""Messages with their sequence numbers."""


async def tell_summaries(
    session: Session, plan: FetchPlan, numbered: Iterable[tuple[int, int]], left_out: LeftOut
) -> None:
    """Send the items of messages, which come as sequence numbers with UIDs, ascending. The plan `is_summary`."""
    command = _Command(session, plan, Summaries(plan.items, session.selection.flag_texts), left_out)
    pairs = iter(numbered)
    if not command.summaries.outlined:
        while some := [*islice(pairs, ROWS_AT_ONCE)]:
            await command.tell(command.present(some), ())
            await trio.lowlevel.checkpoint()
        return
    most = max(1, min(VALUES_AT_ONCE // len(command.summaries.outlined), NAMES_BYTES // command.summaries.names_bytes))
    while block := [*islice(pairs, _NAMED_AT_ONCE)]:
        start = 0
        for uids in slices([uid for _, uid in block], most):
            found = command.present(block[start : start + len(uids)])
            await command.tell(found, await command.told([message for _, message in found]))
            start += len(uids)


@dataclass(frozen=True, slots=True)
class _Command:
    """One command's way from messages to responses."""

    session: Session
    plan: FetchPlan
    summaries: Summaries
    left_out: LeftOut

    def present(self, pairs: Sequence[tuple[int, int]]) -> _Numbered:
        """Return the messages that are still there, and count the others."""
        get = self.session.selection.view.messages.get
        found = [(number, message) for number, uid in pairs if (message := get(uid)) is not None]
        self.left_out.gone += len(pairs) - len(found)
        return found

    async def told(self, messages: Sequence[Message]) -> list[Told]:
        """Return what outlines tell of these messages, from memory where it is kept there.

        A row may lack the values of a few messages. They are looked for again: outlines are made all the time.
        """
        items, cache, bodies = self.summaries.outlined, self.session.services.headers, digest_of(messages)
        rows = [cache.get(bodies, kept_name(item)) for item in items]
        columns: list[list[bytes | None]] = [
            [*cast("Told", row.values)] if row else [None] * len(messages) for row in rows
        ]
        if places := [at for at in range(len(messages)) if any(column[at] is None for column in columns)]:
            packed = await self.session.mail.outlines([messages[at] for at in places], outline.VERSION)
            outlines = [Outline.unpack(packed.get(messages[at].content_hash)) for at in places]
            for item, row, column in zip(items, rows, columns, strict=True):
                tell = outline.teller(item)
                for at, known in zip(places, outlines, strict=True):
                    if known is not None and column[at] is None:
                        column[at] = tell(known)
                if row is None and len(column) >= LEAST_KEPT and column.count(None) <= len(column) // MOST_LACKING:
                    cache.put(bodies, kept_name(item), CachedRow(column, size_bytes_of(column)))
        await trio.lowlevel.checkpoint()
        return [_without_outline(item, column, messages) for item, column in zip(items, columns, strict=True)]

    async def tell(self, found: _Numbered, told: Sequence[Told]) -> None:
        """Send the responses, in their order. Messages of which an outline does not tell all are read."""
        untold = {at for column in told if None in column for at, value in enumerate(column) if value is None}
        for is_untold, places in groupby(range(len(found)), untold.__contains__):
            run = [*places]
            some = [found[at] for at in run]
            if is_untold:
                await self._read(some)
            else:
                await self._send(some, [column[run[0] : run[-1] + 1] for column in told] if untold else told)

    async def _send(self, found: _Numbered, told: Sequence[Told]) -> None:
        selection = self.session.selection
        messages = [message for _, message in found]
        if told:  # they may have changed while outlines were read
            get = selection.view.messages.get
            messages = [get(message.uid, message) for message in messages]
        heard = selection.unheard_keywords(messages) if self.plan.tells_flags else []
        numbers = [number for number, _ in found]
        await self.session.write([*heard, self.summaries.responses(numbers, messages, told)])

    async def _read(self, found: _Numbered) -> None:
        pairs = ((number, message.uid) for number, message in found)
        async with aclosing(slices_of(self.session, self.plan, pairs, self.left_out)) as read:
            async for some in read:
                await tell(self.session, self.plan, some, UidSet())


def kept_name(item: FetchItem) -> bytes:
    """Return the name under which the item's values are kept, which is the same for all spellings of its fields."""
    partial = item.partial if isinstance(item, BodySection) else None
    length = b"" if partial is None else b"%d" % partial.length
    return response_name(item).lower().encode("ascii") + length


def _without_outline(item: FetchItem, column: Told, messages: Sequence[Message]) -> Told:
    """Return the column, filled in where no body is needed: NIL, or the THREADID of a lone message."""
    if not needs_body(item):  # it is never read: RFC 8970 section 3.2
        return [value or b"NIL" for value in column]
    if item is Attribute.THREADID:
        told = zip(column, messages, strict=True)
        return [b"(%b)" % lone_thread(message).encode("ascii") if value == b"" else value for value, message in told]
    return column
