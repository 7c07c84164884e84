"""The turns of the event loop, counted by a task beside the one that is tested."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio


@dataclass
class Turns:
    """The number of times that another task, which is always ready, has run."""

    count: int = 0


@asynccontextmanager
async def counting_turns() -> AsyncIterator[Turns]:
    turns = Turns()

    async def take_turns() -> None:
        while True:
            turns.count += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        yield turns
        nursery.cancel_scope.cancel()
