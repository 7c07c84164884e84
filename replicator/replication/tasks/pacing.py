"""How fast a task goes, and how long it waits for other nodes to show what they are to show."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection

import trio

SHOW_TIMEOUT_S = 30.0  # for a node to show what was done
SLOW_TIMEOUT_S = 2.0  # for one that has let that pass, until it is in time again: there may be a million mailboxes
SHOW_EVERY_S = 0.2


class Pace:
    """So many things a second at most, whoever does some; None: as fast as it goes."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._busy_until = -math.inf

    async def rest(self, amount: int) -> None:
        """As long as these are to take."""
        if self._rate is not None:
            self._busy_until = max(self._busy_until, trio.current_time()) + amount / self._rate
            await trio.sleep_until(self._busy_until)


class Patience:
    """Waits for nodes, but not again as long for those that were too slow."""

    def __init__(self) -> None:
        self._slow: set[str] = set()

    async def wait(self, nodes: Collection[str], late: Callable[[], Awaitable[Collection[str]]]) -> Collection[str]:
        """Ask again and again which of the nodes are not there yet; those that are not in the end."""
        began = trio.current_time()
        while missing := await late():
            limit = SLOW_TIMEOUT_S if self._slow.issuperset(missing) else SHOW_TIMEOUT_S
            if trio.current_time() > began + limit:
                self._slow.update(missing)
                return missing
            await trio.sleep(SHOW_EVERY_S)
        self._slow.difference_update(nodes)
        return ()
