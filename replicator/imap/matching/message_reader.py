"""Where message texts are taken apart: small ones at once, large ones in a thread, so that nobody waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from protocol.units import KIB
from replicator.environment import ThreadRunner, run_in_thread
from replicator.imap.matching.bounds import is_text
from replicator.imap.rendering.fetch_answers import MessageText
from replicator.mailstore import Text, needs_whole, read_all
from replicator.mime.skeleton import Skeleton

T = TypeVar("T")

LARGE_TEXT_BYTES = 256 * KIB
"""Parsing up to that takes about a millisecond, tens of them for hostile texts; a thread takes a tenth of one."""

WHOLE_AT_ONCE = 2
"""Texts of up to 128 MiB, and what is made of them."""

THREADS = 2
"""More would only wait for each other: they share one interpreter lock."""


def _hides_text(skeleton: Skeleton) -> bool:
    """Whether in its gaps there is any of what is searched."""
    if not skeleton.gaps:
        return False
    parts = MessageText(skeleton).structure.walk()
    return not all(skeleton.is_whole(part.header.end, part.end) for part in parts if is_text(part))


@dataclass(frozen=True, slots=True)
class Parsing:
    """Runs work on texts. Work looks at nothing that the event loop changes, and returns all that it has found."""

    run_in_thread: ThreadRunner = run_in_thread
    turns: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(WHOLE_AT_ONCE))
    """Held by who has a large text in memory whole."""
    room: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))

    @asynccontextmanager
    async def opened(
        self, text: Text, *, with_structure: bool, with_bodies: bool = False
    ) -> AsyncIterator[MessageText]:
        """A text with its header, its structure, and all that is to be searched in its bodies, as far as asked for.

        Where that takes the whole text, few have theirs in memory at once: no client may be waited for within the
        block. Raises ContentUnavailableError.
        """
        is_whole = needs_whole(text, with_structure=with_structure)
        if not is_whole and not (with_bodies and _hides_text(text.skeleton)):
            yield MessageText(text.skeleton)
            return
        async with self.turns:
            yield MessageText(Skeleton(await read_all(text)))

    async def run(self, text: MessageText, work: Callable[[], T]) -> T:
        """What `work` makes of this text."""
        if len(text.raw) <= LARGE_TEXT_BYTES:
            return work()
        async with self.room:
            return await self.run_in_thread(work)
