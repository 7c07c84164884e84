"""Users who are due to be synced with one Dovecot, and when, without I/O. Times are in seconds of one clock."""

from __future__ import annotations

from sortedcontainers import SortedSet

GATHER_S = 0.5
"""From a user's first change to the sync: the next changes mostly follow at once."""

RETRY_FIRST_S = 2.0
RETRY_MOST_S = 300.0
"""From a sync that has failed to the next one: twice as long each time."""


class Schedule:
    """The users who are due. One who has failed is not due earlier because of changes."""

    def __init__(self) -> None:
        self._order: SortedSet[tuple[float, str]] = SortedSet()
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def changed(self, user: str, now: float) -> None:
        """Note that a user's mail has changed."""
        if user not in self._due:
            self._put(user, now + GATHER_S)

    def failed(self, user: str, now: float) -> None:
        """Note that a sync of a user has failed."""
        failures = self._failures[user] = self._failures.get(user, 0) + 1
        self._remove(user)
        self._put(user, now + min(RETRY_FIRST_S * 2 ** min(failures - 1, 20), RETRY_MOST_S))

    def succeeded(self, user: str) -> None:
        """Note that a sync of a user has succeeded, or that none can: only a change makes the user due again."""
        self._failures.pop(user, None)

    def next_at(self) -> float | None:
        """Return when the next user is due; None: nobody is."""
        return self._order[0][0] if self._order else None

    def take(self, now: float) -> str | None:
        """Return the user who is due and has waited longest; None if nobody is due yet."""
        at = self.next_at()
        if at is None or at > now:
            return None
        user = self._order[0][1]
        self._remove(user)
        return user

    def _put(self, user: str, at: float) -> None:
        self._due[user] = at
        self._order.add((at, user))

    def _remove(self, user: str) -> None:
        if user in self._due:
            self._order.remove((self._due.pop(user), user))
