"""Limited concurrency: does work on many items, several at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def in_turns(work: Callable[[T], Awaitable[object]], items: Iterable[T], at_once: int) -> None:
    """Do the work on each item, `at_once` items at a time, started in their order.

    After the first error no further item is started; running ones are finished, and then that error itself is raised.
    """
    waiting = iter(items)
    errors: list[Exception] = []

    async def take_turns() -> None:
        for item in waiting:
            try:
                await work(item)
            except Exception as error:  # noqa: BLE001 - raised below: a nursery would wrap it in a group
                errors.append(error)
            if errors:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(take_turns)
    if errors:
        raise errors[0]
