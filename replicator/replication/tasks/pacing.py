"""Rate limits for tasks, and time limits for other nodes to show a result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection

import trio

from replicator.replication import timing


class Pace:
    """A limit of items per second, shared by all callers; None: no limit."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._busy_until = -math.inf

    async def rest(self, amount: int) -> None:
        """Sleep for as long as this many items take at the rate."""
        if self._rate is not None:
            self._busy_until = max(self._busy_until, trio.current_time()) + amount / self._rate
            await trio.sleep_until(self._busy_until)


class ConvergenceWait:
    """A wait for nodes, brief for those that were too slow before."""

    def __init__(self) -> None:
        self._slow: set[str] = set()

    async def wait(self, nodes: Collection[str], late: Callable[[], Awaitable[Collection[str]]]) -> Collection[str]:
        """Ask `late` repeatedly for the nodes that are not done; return those that are not done within the limit."""
        began = trio.current_time()
        while missing := await late():
            limit = timing.PACING_SLOW_TIMEOUT_S if self._slow.issuperset(missing) else timing.PACING_SHOW_TIMEOUT_S
            if trio.current_time() > began + limit:
                self._slow.update(missing)
                return missing
            await trio.sleep(timing.PACING_SHOW_EVERY_S)
        self._slow.difference_update(nodes)
        return ()
