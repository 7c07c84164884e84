"""Work on many mails, beside the event loop: it takes long, and may wait for a disk where mails are in a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sized
from itertools import islice
from typing import TypeVar

import trio

AT_ONCE = 500
"""Mails of which the event loop computes something at once: some milliseconds."""

T = TypeVar("T")


async def computed(work: Callable[[], T], *about: Sized) -> T:
    """Compute something about so many things: in a thread, where that would hold up other tasks."""
    return work() if sum(map(len, about)) <= AT_ONCE else await trio.to_thread.run_sync(work)


async def computed_each(items: Iterable[T], *about: Sized) -> AsyncGenerator[T, None]:
    """Yield items that are computed from so many things, some at a time."""
    rest = iter(items)
    while part := await computed(lambda: [*islice(rest, AT_ONCE)], *about):
        for item in part:
            yield item
