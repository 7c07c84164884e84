"""Users whose mail has changed at this node, for a task that follows them: one set, however many changes there are."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import trio

from replicator.runtime.signals import Signal


class ChangedUsers:
    """The users whose mail has changed since the last call of `take`. Belongs to the event loop."""

    def __init__(self) -> None:
        self._users: set[str] = set()
        self._signal = Signal()

    def note(self, users: Iterable[str]) -> None:
        """Note users whose mail a commit has changed. Called by the store."""
        self._users.update(users)
        if self._users:
            self._signal.set()

    async def take(self) -> AbstractSet[str]:
        """Return them, at least one: wait for that. Safe to cancel."""
        while not self._users:
            self._signal.clear()
            await self._signal.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        users, self._users = self._users, set()
        return users
