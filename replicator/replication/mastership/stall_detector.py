"""The pulse of a node's event loop: by what it misses a node knows that it has stood still (design section 5).

A process may be stopped, its machine may sleep, or something may keep its event loop for long. When it goes on its
peers have given it up, and other nodes number what it mastered. Its tasks run in any order then: so whoever is about to
number asks whether a beat is missing, be it in the writer's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

BEATS = 12  # in the time that a pulse may miss


class StallDetector:
    """Belongs to the event loop, of a run of trio.

    `may_miss_s`: without a beat; `suspended_s`: see `Environment`; `went_on` is called with the seconds that were
    missed, before anybody is told that the node is awake again.
    """

    def __init__(
        self, may_miss_s: float, *, suspended_s: Callable[[], float], went_on: Callable[[float], None]
    ) -> None:
        self._may_miss_s = may_miss_s
        self._suspended_s = suspended_s
        self._went_on = went_on
        self._clock = trio.lowlevel.current_clock()
        self._last = self._now()

    @property
    def is_missing(self) -> bool:
        """Whether the node has stood still, and has done nothing about it yet. Any thread may ask."""
        return self._now() - self._last > self._may_miss_s

    def beat(self) -> None:
        """Find out whether the node has stood still. If it stops in here, the next beat finds that."""
        now = self._now()
        if now - self._last > self._may_miss_s:
            self._went_on(now - self._last)
        self._last = now

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await trio.sleep(self._may_miss_s / BEATS)

    def _now(self) -> float:
        return self._clock.current_time() + self._suspended_s()
