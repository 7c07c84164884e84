"""Users who are due to be synced with one Dovecot: when, and how much of their mail is to be looked at.

Times are in seconds of one clock.
"""

from __future__ import annotations

import math
from enum import IntEnum

from sortedcontainers import SortedSet

from replicator.runtime.signals import Signal

GATHER_S = 0.5
"""From a user's first change to the sync: the next changes mostly follow at once."""

RETRY_FIRST_S = 2.0
RETRY_MOST_S = 300.0
"""From a sync that has failed to the next one: twice as long each time."""


class Look(IntEnum):
    """Extents of what a sync looks at; each includes those before it."""

    CHANGED = 1  # mailboxes in which something has changed here
    EVERYWHERE = 2  # all mailboxes
    FULL = 3  # all mails, whatever earlier syncs have found equal


class Schedule:
    """The users who are due. What a sync was to look at stays owed until one has succeeded.

    `grown` and `shrunk` tell of users who have come, and who were taken.
    """

    def __init__(self) -> None:
        self._order: SortedSet[tuple[float, str]] = SortedSet()
        self._due: dict[str, float] = {}
        self._owed: dict[str, Look] = {}
        self._failures: dict[str, int] = {}
        self.grown = Signal()
        self.shrunk = Signal()

    def __len__(self) -> int:
        """Return the number of users whose syncs are owed, with those who wait for another try."""
        return len(self._due)

    def due(self, now: float) -> int:
        """Return the number of users whose turn it is by now."""
        return self._order.bisect_left((math.nextafter(now, math.inf), ""))

    def changed(self, user: str, now: float) -> None:
        """Note that a user's mail has changed. One who has failed is not due earlier for that."""
        self.owe(user, Look.CHANGED, now + GATHER_S)

    def owe(self, user: str, look: Look, at: float) -> None:
        """Let a user be due at this time, unless the user is due already."""
        self._owed[user] = max(look, self._owed.get(user, look))
        if user not in self._due:
            self._put(user, at)

    def failed(self, user: str, look: Look, now: float) -> None:
        """Note that a sync of a user has failed, and at how much the next one is to look."""
        failures = self._failures[user] = self._failures.get(user, 0) + 1
        self._remove(user)
        self.owe(user, look, now + min(RETRY_FIRST_S * 2 ** min(failures - 1, 20), RETRY_MOST_S))

    def succeeded(self, user: str) -> None:
        """Note that a sync of a user has succeeded, or that none can."""
        self._failures.pop(user, None)

    def next_at(self) -> float | None:
        """Return when the next user is due; None: nobody is."""
        return self._order[0][0] if self._order else None

    def take(self, now: float) -> tuple[str, Look] | None:
        """Take the user who is due and has waited longest; None if nobody is due yet."""
        at = self.next_at()
        if at is None or at > now:
            return None
        user = self._order[0][1]
        self._remove(user)
        self.shrunk.notify()
        return user, self._owed.pop(user)

    def _put(self, user: str, at: float) -> None:
        self._due[user] = at
        self._order.add((at, user))
        self.grown.notify()

    def _remove(self, user: str) -> None:
        if user in self._due:
            self._order.remove((self._due.pop(user), user))
