"""The pauses between connections to one Dovecot that fail."""

from __future__ import annotations

import logging
import math

import trio

log = logging.getLogger(__name__)

PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 60.0
"""From a failed connection to the next one: twice as long each time."""


class Gate:
    """Holds syncs back while the Dovecot cannot be reached. `why`: why it could not the last time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opens_at = -math.inf
        self._failures = 0
        self.why: str | None = None

    async def passed(self) -> None:
        """Return when the next sync may be tried."""
        await trio.sleep_until(self._opens_at)

    def close(self, why: str) -> None:
        """Note that a connection has failed."""
        if self.why != why:
            log.warning("syncs with the Dovecot at %s wait: %s", self._name, why)
        self.why = why
        if self._opens_at <= trio.current_time():  # of several that fail at once, one counts
            self._failures += 1
            pause_s = min(PAUSE_FIRST_S * 2 ** min(self._failures - 1, 20), PAUSE_MOST_S)
            self._opens_at = trio.current_time() + pause_s

    def open(self) -> None:
        """Note that a connection has succeeded."""
        if self.why is not None:
            log.info("the Dovecot at %s is reached again", self._name)
        self.why, self._failures = None, 0
