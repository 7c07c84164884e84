"""The users whose mail is synced, at the door and by pushes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Users(Protocol):
    """The users who have mail here."""

    async def ask(self, name: str) -> str | None:
        """Return the user's own name; None if there is none. Raises MailError."""
        ...


class Syncing:
    """The users who are being synced. Two syncs of one user would take each other's changes for news."""

    def __init__(self) -> None:
        self._users: set[str] = set()

    @contextmanager
    def held(self, user: str) -> Iterator[bool]:
        """Hold a user during a sync. Yield False, and hold nobody, if another sync does."""
        if user in self._users:
            yield False
            return
        self._users.add(user)
        try:
            yield True
        finally:
            self._users.remove(user)
