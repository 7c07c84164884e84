"""Parsing of message bodies: small ones on the event loop, large ones in a thread so as not to block it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from protocol.units import KIB
from replicator.imap.matching.bounds import is_text
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.mailstore import BodyReader, needs_whole, read_all
from replicator.mime.skeleton import Skeleton
from replicator.runtime.environment import ThreadRunner, run_in_thread

T = TypeVar("T")

LARGE_BODY_BYTES = 256 * KIB
"""Largest body that is parsed on the event loop. That takes about a millisecond, tens of them for hostile bodies.

Switching to a thread takes a tenth of a millisecond.
"""

WHOLE_AT_ONCE = 2
"""Number of large bodies held whole in memory at once, of up to 128 MiB each, plus their parsed form."""

THREADS = 2
"""Number of parsing threads. More would only wait for each other: they share one interpreter lock."""


def _hides_text(skeleton: Skeleton) -> bool:
    """Return True if the skeleton's gaps hold any searchable text."""
    if not skeleton.gaps:
        return False
    parts = ParsedBody(skeleton).structure.walk()
    return not all(skeleton.is_whole(part.header.end, part.end) for part in parts if is_text(part))


@dataclass(frozen=True, slots=True)
class Parsing:
    """Runs work on message bodies. Work uses nothing that the event loop changes, and returns all that it found."""

    run_in_thread: ThreadRunner = run_in_thread
    turns: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(WHOLE_AT_ONCE))
    """One of these is held while a large body is in memory whole."""
    room: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))

    @asynccontextmanager
    async def opened(
        self, body: BodyReader, *, with_structure: bool, with_bodies: bool = False
    ) -> AsyncIterator[ParsedBody]:
        """Open a body with its header; also with its structure and its searchable parts, if asked for.

        If that requires the whole body, only a few callers hold theirs at once, so the block must not wait for a
        client. Raises ContentUnavailableError.
        """
        is_whole = needs_whole(body, with_structure=with_structure)
        if not is_whole and not (with_bodies and _hides_text(body.skeleton)):
            yield ParsedBody(body.skeleton)
            return
        async with self.turns:
            yield ParsedBody(Skeleton(await read_all(body)))

    async def run(self, body: ParsedBody, work: Callable[[], T]) -> T:
        """Return the result of `work` on this body, running it in a thread if the body is large."""
        if len(body.raw) <= LARGE_BODY_BYTES:
            return work()
        async with self.room:
            return await self.run_in_thread(work)
