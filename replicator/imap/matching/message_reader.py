"""Parsing of message bodies: small ones on the event loop, large ones in a thread so as not to block it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from protocol.units import KIB
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.search_text import hides_text
from replicator.mail.mailstore import BodyReader, needs_whole, read_all, read_begin
from replicator.mime.header import MAX_FIELDS
from replicator.mime.skeleton import Gap, Skeleton
from replicator.runtime.environment import ThreadRunner, run_in_thread

T = TypeVar("T")

LARGE_BODY_BYTES = 32 * KIB
"""Most octets (of the header or, where more is needed, of the body) that the event loop parses.

That takes a fraction of a millisecond, some milliseconds for hostile mail. Switching to a thread takes a tenth of a
millisecond.
"""

LARGE_WORK_BYTES = 256 * KIB
"""Limit of octets times the number of wanted values that the event loop parses."""

MANY_PARTS = 64
"""Number of parts from which a body is large in any case: a part takes a tenth of a millisecond, however small."""

PREVIEW_VALUES = 64
"""Number of values that a preview counts for: the event loop makes those of small bodies only."""

_HEADER_LOOKED_FOR_BYTES = 256 * KIB  # in a body whose header the event loop measures, by one regular expression

MANY_MESSAGES = 2000
"""Most messages that the event loop goes through in one step, each in a microsecond."""

WHOLE_AT_ONCE = 2
"""Number of large bodies held whole in memory at once, of up to 128 MiB each, plus their parsed form."""

THREADS = 2
"""Number of parsing threads. More would only wait for each other: they share one interpreter lock."""


def _is_large(body: ParsedBody, *, with_structure: bool, values: int) -> bool:
    """Return True if making so many values from the header, or from the whole body, may take long."""
    if not with_structure and len(body.raw) > _HEADER_LOOKED_FOR_BYTES:
        return True
    begins_bytes = sum(len(gap.begin or b"") for gap in body.skeleton.gaps)
    size_bytes = begins_bytes + (len(body.raw) if with_structure else body.header.end)
    if size_bytes > LARGE_BODY_BYTES or size_bytes * values > LARGE_WORK_BYTES:
        return True
    return with_structure and body.raw.count(b"\n--") > MANY_PARTS


@dataclass(frozen=True, slots=True)
class Parsing:
    """Runs work on message bodies. Work uses nothing that the event loop changes, and returns all that it found."""

    run_in_thread: ThreadRunner = run_in_thread
    turns: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(WHOLE_AT_ONCE))
    """One of these is held while a large body is in memory whole."""
    room: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))
    max_fields: int = MAX_FIELDS
    """Fields of a header that can be found by name."""
    many_messages: int = MANY_MESSAGES

    def small(self, body: BodyReader, *, with_structure: bool, values: int) -> ParsedBody | None:
        """Return the body if it is here whole, and the event loop may make so many values of it; else None."""
        if body.skeleton.gaps or needs_whole(body, with_structure=with_structure):
            return None
        parsed = ParsedBody(body.skeleton, self.max_fields)
        return None if _is_large(parsed, with_structure=with_structure, values=values) else parsed

    @asynccontextmanager
    async def opened(
        self, body: BodyReader, *, with_structure: bool, with_bodies: bool = False, with_preview: bool = False
    ) -> AsyncIterator[ParsedBody]:
        """Open a body with its header; also with its structure, its searchable parts and its preview, if asked for.

        If that requires the whole body, only a few callers hold theirs at once, so the block must not wait for a
        client. Raises ContentUnavailableError.
        """
        parsed = ParsedBody(body.skeleton, self.max_fields)
        is_whole = needs_whole(body, with_structure=with_structure)
        if not is_whole and with_bodies and body.skeleton.gaps:
            is_whole = await self.run(parsed, partial(hides_text, parsed), with_structure=True)
        if not is_whole:
            if with_preview and body.skeleton.gaps:
                gap = await self.apart(partial(getattr, parsed, "preview"))
                if isinstance(gap, Gap):
                    parsed = ParsedBody(await read_begin(body, gap), self.max_fields)
            yield parsed
            return
        async with self.turns:
            yield ParsedBody(Skeleton(await read_all(body)), self.max_fields)

    async def run(self, body: ParsedBody, work: Callable[[], T], *, with_structure: bool, values: int = 1) -> T:
        """Return the result of `work` on this body, which makes so many values, from the header or with the structure.

        Runs it in a thread if that may take long.
        """
        if not _is_large(body, with_structure=with_structure, values=values):
            return work()
        return await self.apart(work)

    async def apart(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which may take long, running it in one of a few threads."""
        async with self.room:
            return await self.run_in_thread(work)

    async def apart_if_many(self, messages: int, work: Callable[[], T]) -> T:
        """Return the result of `work` on so many messages; it must not use what the event loop changes."""
        return await self.apart(work) if messages > self.many_messages else work()
