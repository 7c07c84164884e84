"""Upper bound for the numbers of adverts, of statements and of terms (design section 5).

The highest number counts, so a peer that invents one must leave room above it. The bound rises with the clock, faster
than nodes count: a node can soon go above any number that was below the bound.
"""

from __future__ import annotations

AHEAD_MAX = 1 << 62
"""Milliseconds above the clock up to which a number is believed: half the protocol's range, beyond any wrong clock."""

MAX_CLOCK_DIFFERENCE_MS = 5 * 60 * 1000
"""Milliseconds by which the clocks of linked nodes may differ."""

LEAP = 1 << 16
"""Step by which a node's advert exceeds that of another run of itself, since more of those may be in flight.

Also the most by which a term may exceed a node's own to be believed at once (`Election`).
"""


def is_believed(number: int, clock_ms: int) -> bool:
    """Return True if a node accepts the number. All nodes do, or will when their clocks are as far."""
    return number <= clock_ms + AHEAD_MAX


def may_overrule(number: int, clock_ms: int) -> bool:
    """Return True if a number that exceeds this one would still be believed by the neighbours, by their own clocks."""
    return is_believed(number + LEAP + 1 + MAX_CLOCK_DIFFERENCE_MS, clock_ms)
