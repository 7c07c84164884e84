"""Where message texts are taken apart: small ones at once, large ones in a thread, so that nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from protocol.units import KIB
from replicator.environment import ThreadRunner, run_in_thread
from replicator.imap.message import MessageText

T = TypeVar("T")

LARGE_TEXT_BYTES = 256 * KIB
"""Parsing up to that takes about a millisecond, tens of them for hostile texts; a thread takes a tenth of one."""

WHOLE_AT_ONCE = 2
"""Texts of up to 128 MiB, and what is made of them."""

THREADS = 2
"""More would only wait for each other: they share one interpreter lock."""


@dataclass(frozen=True, slots=True)
class Parsing:
    """Runs work on texts. Work looks at nothing that the event loop changes, and returns all that it has found."""

    run_in_thread: ThreadRunner = run_in_thread
    whole: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(WHOLE_AT_ONCE))
    """Held by who has a large text in memory whole, to search it."""
    room: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))

    async def run(self, text: MessageText, work: Callable[[], T]) -> T:
        """What `work` makes of this text."""
        if len(text.raw) <= LARGE_TEXT_BYTES:
            return work()
        async with self.room:
            return await self.run_in_thread(work)
