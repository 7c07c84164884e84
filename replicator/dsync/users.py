"""The users whose mail is synced, at the door and by pushes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from replicator.errors import OtherClusterError


class Users(Protocol):
    """The users who have mail here."""

    async def ask(self, name: str) -> str | None:
        """Return the user whose mail a log-in name opens; None if there is none. Raises MailError."""
        ...

    def name_meant(self, name: str) -> str:
        """Return a log-in name that opens the mail of the user of this name; if none does, this name."""
        ...


async def user_meant(users: Users, name: str) -> str | None:
    """Return the user of a log-in name, or of this name: after a rename, no log-in name need have it.

    Raises MailError.
    """
    return await users.ask(users.name_meant(name))


async def is_former(users: Users, user: str) -> bool:
    """Return True if mail here is that of somebody who is no user any more, or whose mail is in another cluster by now.

    Raises MailError.
    """
    try:
        return await user_meant(users, user) != user
    except OtherClusterError:
        return True


class Syncing:
    """The users who are being synced. Two syncs of one user would take each other's changes for news."""

    def __init__(self) -> None:
        self._users: dict[str, trio.Event] = {}  # set at the end of the sync

    @contextmanager
    def held(self, user: str) -> Iterator[bool]:
        """Hold a user during a sync. Yield False, and hold nobody, if another sync does."""
        if user in self._users:
            yield False
            return
        ended = self._users[user] = trio.Event()
        try:
            yield True
        finally:
            del self._users[user]
            ended.set()

    async def wait_free(self, user: str, most_s: float) -> None:
        """Return when no sync holds the user, or after this time."""
        with trio.move_on_after(most_s):
            while (ended := self._users.get(user)) is not None:
                await ended.wait()
