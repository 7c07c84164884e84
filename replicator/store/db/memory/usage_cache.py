"""Contents of users' mailboxes, kept in memory: counted once for each user, then carried on by commits.

A user's sum is counted in the writer's turn, so it is exact when its commit is published; each later commit says by how
much it has grown. So no delivery has to look at all folders.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from replicator.store.db.chain import Usage
from replicator.store.db.transaction import Commit, Transaction

USERS_IN_MEMORY = 10_000  # about 300 bytes each

Write = Callable[[Callable[[Transaction], None]], Awaitable[None]]


class UsageCache:
    """The sums of one node. Used on the event loop only."""

    def __init__(self, write: Write) -> None:
        """`write`: runs a job of the writer, and returns once its commit has been given to `apply`."""
        self._write = write
        self._known: OrderedDict[str, Usage] = OrderedDict()

    async def get(self, user: str) -> Usage:
        """Return what all mailboxes of the user hold, as this node shows them. Raises DatabaseFailedError."""
        while user not in self._known:
            await self._write(lambda tx: tx.count_usage(user))
        self._known.move_to_end(user)
        return self._known[user]

    def apply(self, commit: Commit) -> None:
        """Take in a published commit."""
        for user in commit.recounted:
            self._known.pop(user, None)
        for user in commit.growth.keys() & self._known.keys():
            self._known[user] = self._known[user].plus(commit.growth[user])
        self._known.update(commit.usage)
        while len(self._known) > USERS_IN_MEMORY:
            self._known.popitem(last=False)
