"""How high nodes count: one bound for the numbers of adverts, of statements and of terms (design section 5).

The highest number counts, so whoever makes one up must leave room above it. The bound goes up with the clock, faster
than nodes count: whatever was said below it, they can go above that a little later.
"""

from __future__ import annotations

AHEAD_MAX = 1 << 62
"""How far above the clock, in ms, a number is believed: half of what the protocol can say, beyond any wrong clock."""

MAX_CLOCK_DIFFERENCE_MS = 5 * 60 * 1000
"""Between the clocks of linked nodes."""

LEAP = 1 << 16
"""By how much a node's advert goes above that of another run of itself, of which more may be on their way."""


def is_believed(number: int, clock_ms: int) -> bool:
    """Whether a node takes it in. All do, or will when their clocks are as far."""
    return number <= clock_ms + AHEAD_MAX


def may_overrule(number: int, clock_ms: int) -> bool:
    """Whether a node that goes above this number still says what its neighbours believe, by their clocks."""
    return is_believed(number + LEAP + 1 + MAX_CLOCK_DIFFERENCE_MS, clock_ms)
