"""Threads that count what they are given to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from replicator.runtime.environment import run_in_thread

T = TypeVar("T")


class CountedThreads:
    """`run_in_thread`, with the number of times that it was called."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, work: Callable[[], T]) -> T:
        self.count += 1
        return await run_in_thread(work)
