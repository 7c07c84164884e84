"""The hybrid logical clock (design section 2): near the wall clock, never backwards, always after what it has seen.

Entries of a node whose clock was wrong, however far, must be accepted, because they hold mail. The clock follows their
times to keep causes before effects. The only cost is that its times run ahead of real time until the wall clock has
caught up.
"""

from __future__ import annotations

from collections.abc import Callable

COUNTER_BITS = 16
WALL_MAX_MS = 1 << 45
"""Milliseconds, the year 3084: a wall clock beyond it is not believed."""
FOLLOWED_MAX_MS = WALL_MAX_MS + (1 << 40)
"""Milliseconds that no believed clock reaches by counting: later times are lies, and there is always room above."""


def is_believed(time: int) -> bool:
    """Return True if a clock can have given this time of a stamp."""
    return time <= FOLLOWED_MAX_MS << COUNTER_BITS


class HybridClock:
    """A clock of 48 bits of milliseconds above 16 bits of counter. Owned by the one thread that numbers entries."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._last = 0

    def tick(self) -> int:
        """Return a time later than all that were given out or observed."""
        self._last = max(self._last + 1, min(self._clock_ms(), WALL_MAX_MS) << COUNTER_BITS)
        return self._last

    @property
    def last(self) -> int:
        """The latest time that was given out or observed."""
        return self._last

    def wall_ms(self) -> int:
        """Return the wall clock's milliseconds."""
        return self._clock_ms()

    def observe(self, time: int) -> None:
        """Remember a time that was given out, here or elsewhere."""
        if is_believed(time):
            self._last = max(self._last, time)
