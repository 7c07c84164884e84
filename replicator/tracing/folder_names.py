"""Names of folders by their ids, as this node shows them now, for traces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import trio

from replicator.errors import MailError

USERS_MAX = 1000
FRESH_S, AGAIN_S = 10.0, 0.1
"""Seconds for which a user's names are good, and after which they are read again for one that is not among them."""

ReadNames: TypeAlias = Callable[[str], Awaitable[Mapping[bytes, str]]]
"""User -> the names of the user's folders by their ids. May raise MailError. It changes nothing and asks no peer."""


class FolderNames:
    """Folders' names, read from the database when they are asked for. Belongs to the event loop."""

    def __init__(self, read: ReadNames) -> None:
        self._read = read
        self._known: dict[str, tuple[float, Mapping[bytes, str]]] = {}  # and when they were read

    async def get(self, user: str, mailbox_id: bytes) -> str | None:
        """Return the folder's name; None if it has none here."""
        read_at, names = self._known.get(user, (-FRESH_S, {}))
        if trio.current_time() - read_at >= (FRESH_S if mailbox_id in names else AGAIN_S):
            names = await self._names(user)
        return names.get(mailbox_id)

    async def _names(self, user: str) -> Mapping[bytes, str]:
        read_at = trio.current_time()
        try:
            names = await self._read(user)
        except MailError:
            names = {}
        if len(self._known) >= USERS_MAX:
            self._known.clear()
        self._known[user] = (read_at, names)
        return names
