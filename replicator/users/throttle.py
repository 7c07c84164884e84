"""Delays of password attempts after failed ones. No I/O: the time is an argument.

Each user and each address has a level that rises by one with a failure and leaks away over time. Up to a free allowance
nothing waits; above it, each failure doubles the delay, up to a limit that a person who mistyped can bear. The delay
counts from the last failure, so a later attempt does not wait at all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

LEAK_S = 20.0
"""Seconds after which one failure is forgotten."""

FIRST_DELAY_S = 0.5
DELAY_MAX_S = 8.0
"""IMAP clients give up on a login after some 30 seconds."""

ENTRIES_MAX = 10_000
"""Keys in a table, about 2 MiB. A full table drops the keys that failed longest ago."""


@dataclass(slots=True)
class _Failures:
    level: float
    last_s: float


class FailureTable:
    """Failures by key. A key may have `free` failures before its attempts are delayed."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def ready_at(self, key: str) -> float:
        """Return the time at which the next attempt may proceed; in the past if that is now."""
        failures = self._failures.get(key)
        excess = failures.level - self._free if failures else 0
        if failures is None or excess <= 0:
            return 0.0
        # The level is unbounded, so the exponent is bounded first.
        return failures.last_s + min(DELAY_MAX_S, FIRST_DELAY_S * 2.0 ** min(excess - 1, 10))

    def failed(self, key: str, now: float) -> None:
        """Count a failure."""
        failures = self._failures.pop(key, None) or _Failures(0.0, now)
        level = max(0.0, failures.level - (now - failures.last_s) / LEAK_S)
        self._failures[key] = _Failures(level + 1, now)
        while len(self._failures) > ENTRIES_MAX:
            self._failures.popitem(last=False)

    def forget(self, key: str) -> None:
        """Reset the key's failures."""
        self._failures.pop(key, None)

    def __len__(self) -> int:
        return len(self._failures)
