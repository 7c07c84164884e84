"""The pulse of a node's event loop: missed beats show that the node has stood still (design section 5).

A process may be stopped, its machine may sleep, or its event loop may be blocked for long. When the node goes on, its
peers have given it up, and other nodes are masters in its place. Its tasks then resume in any order: so before each
number, even in the writer's thread, the node checks if a beat is missing.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

BEATS = 12  # in the time that the pulse may miss


class StallDetector:
    """The pulse of an event loop, to which it belongs; created within a run of trio.

    `may_miss_s` is the longest time without a beat; for `suspended_s` see `Environment`. `went_on` is called with the
    seconds that were missed, before `is_missing` turns False again.
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
        """True if the node has stood still and has not reacted yet. Any thread may read this."""
        return self._now() - self._last > self._may_miss_s

    def beat(self) -> None:
        """Check if the node has stood still, and react. A pause within this call is found by the next beat."""
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
