"""The time that a node has for upkeep of its bodies: deliveries come first, and all upkeep takes half of one processor.

A turn begins when the log has not grown for a moment; while it grows all the time, each task has one turn in
`SPARE_TIME_PATIENCE_S`. Turns do not overlap, and a rest as long as the turn follows each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from replicator.replication import timing
from replicator.store.store import Tail


class SpareTime:
    """Turns for tasks that make something of bodies. Belongs to the event loop."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._quiet_at = -1  # the log's end when it was last found quiet
        self._turns = trio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Take a turn, of some 30 ms of work. Waits for its time before the block, and rests after it."""
        await self._quiet()
        async with self._turns:
            began = trio.current_time()
            yield
            await trio.sleep(max(timing.SPARE_TIME_REST_S, trio.current_time() - began))

    async def _quiet(self) -> None:
        """Return when the log has not grown for a moment, or when the patience is over."""
        with trio.move_on_after(timing.SPARE_TIME_PATIENCE_S):
            while self._quiet_at != self._tail.end:
                self._quiet_at = self._tail.end
                await trio.sleep(timing.SPARE_TIME_QUIET_S)
