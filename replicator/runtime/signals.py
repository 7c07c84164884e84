"""Signals between tasks, which can be given again and again (a `trio.Event` can be set only once); and semaphores.

A turn of the event loop costs more than most of what tasks do in it, so nothing here takes one needlessly.
"""

from __future__ import annotations

import trio


async def acquire(semaphore: trio.Semaphore) -> None:
    """Acquire a semaphore. If it has room, that takes no turn of the event loop, and does not look for cancellation."""
    try:
        semaphore.acquire_nowait()
    except trio.WouldBlock:
        await semaphore.acquire()


class Signal:
    """Wakes tasks up. Belongs to the event loop.

    A task that must not miss a `notify` between looking and waiting needs an event of its own instead.
    """

    def __init__(self) -> None:
        self._event = trio.Event()

    def is_set(self) -> bool:
        """Return True if nobody has to wait."""
        return self._event.is_set()

    def set(self) -> None:
        """Wake all tasks that wait; those that come later do not wait until it is cleared."""
        self._event.set()

    def clear(self) -> None:
        """Have tasks that come from now on wait."""
        if self._event.is_set():
            self._event = trio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait, and have those that come later wait."""
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Wait until it is set, or for the next `notify`."""
        await self._event.wait()
