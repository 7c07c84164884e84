"""Work on many things, several at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def in_turns(work: Callable[[T], Awaitable[object]], items: Iterable[T], at_once: int) -> None:
    """Do the work on each item, so many at a time, begun in their order.

    After the first error nothing more is begun; what runs is finished, and then that error is raised as itself.
    """
    waiting = iter(items)
    errors: list[Exception] = []

    async def take_turns() -> None:
        for item in waiting:
            try:
                await work(item)
            except Exception as error:  # noqa: BLE001 - raised below: a nursery would hide what it is
                errors.append(error)
            if errors:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(take_turns)
    if errors:
        raise errors[0]
