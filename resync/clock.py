"""The hybrid logical clock (design section 2): near the wall clock, never backwards, always after what it has seen."""

from __future__ import annotations

from collections.abc import Callable

COUNTER_BITS = 16


class HybridClock:
    """48 bits of milliseconds above 16 bits of counter. Owned by the one thread that numbers entries."""

    def __init__(self, clock_ms: Callable[[], int], last: int = 0) -> None:
        self._clock_ms = clock_ms
        self._last = last

    def tick(self) -> int:
        """A time later than all that were given out or observed."""
        self._last = max(self._last + 1, self._clock_ms() << COUNTER_BITS)
        return self._last

    def wall_ms(self) -> int:
        """What the wall clock says."""
        return self._clock_ms()

    def observe(self, time: int) -> None:
        """Remember a time that another node gave."""
        self._last = max(self._last, time)
