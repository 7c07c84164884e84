"""Users' quotas at the node that takes their mail (design section 8).

A node compares a user's limits with what the user's folders hold as the node itself shows them, and with what its
clients are storing at this moment. So the limits are exact where one node takes the user's mail. Nodes that take mail
at once each let in what fits by their own count.

What is under way makes the count uncertain: a message that is being stored may be counted already or not, and mail that
is being moved is counted twice for a while. Where that matters, a request waits until the count is certain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

import trio

from replicator.errors import QuotaExceededError, UnavailableError
from replicator.mail.mailstore import Quota
from replicator.replication import timing
from replicator.runtime.metrics import QuotaMetrics
from replicator.store.db.chain import Usage
from replicator.users import NO_LIMITS, QuotaLimits

STORAGE, MESSAGES = "storage", "messages"

_NOTHING = Usage()


class Quotas:
    """The quotas of one node's users. Belongs to the event loop."""

    def __init__(
        self,
        usage_of: Callable[[str], Awaitable[Usage]],
        limits_of: Callable[[str], Awaitable[QuotaLimits]] | None = None,
        *,
        defer: bool = False,
        metrics: QuotaMetrics | None = None,
    ) -> None:
        """`usage_of`: what a user's folders hold. `defer`: see `QuotaExceededError`.

        `limits_of`: a user's limits; it raises UsersUnavailableError while they are unknown. None: nobody has any.
        """
        self._usage_of = usage_of
        self._limits_of = limits_of
        self.defer = defer
        self._metrics = metrics or QuotaMetrics()
        self._coming: defaultdict[str, Usage] = defaultdict(Usage)
        self._moving: defaultdict[str, Usage] = defaultdict(Usage)
        self._certain = trio.Event()  # set, and replaced, whenever something is no longer under way

    async def quota(self, user: str) -> Quota:
        """Return the usage and the limits of the user's mail. Raises DatabaseFailedError, UsersUnavailableError."""
        limits, used = await self._limits(user), await self._usage_of(user)
        return Quota(used.size_bytes, used.messages, limits)

    async def check(self, user: str, wanted: Usage) -> None:
        """Raise QuotaExceededError if there is certainly no room for so much more.

        Raises DatabaseFailedError, UsersUnavailableError.
        """
        limits = await self._limits(user)
        if limits != NO_LIMITS:
            await self._check(user, wanted, limits)

    async def _limits(self, user: str) -> QuotaLimits:
        return NO_LIMITS if self._limits_of is None else await self._limits_of(user)

    async def _check(self, user: str, wanted: Usage, limits: QuotaLimits) -> None:
        used = (await self._usage_of(user)).minus(self._moving.get(user, _NOTHING))
        if exceeded := _exceeded(limits, used.plus(wanted)):
            self._metrics.refused(exceeded)
            text = f"this would exceed the user's quota of {exceeded}; there is room once mail has been deleted"
            raise QuotaExceededError(text, defer=self.defer)

    @asynccontextmanager
    async def room(self, user: str, wanted: Usage) -> AsyncIterator[None]:
        """Keep room for mail that is stored within the block; wait for it while mail under way makes it uncertain.

        Raises QuotaExceededError, DatabaseFailedError, UsersUnavailableError; UnavailableError if it stays uncertain
        for too long.
        """
        limits = await self._limits(user)
        if limits != NO_LIMITS:
            with trio.move_on_after(timing.REQUEST_TIMEOUT_S) as waiting:
                await self._wait_for_room(user, wanted, limits)
            if waiting.cancelled_caught:
                raise UnavailableError("mail of this user is being stored or moved, and little room is left; try again")
        with self._under_way(self._coming, user, wanted):
            yield

    def moving(self, user: str, moved: Usage) -> AbstractContextManager[None]:
        """Note that this mail is moved within the block, and may be counted twice."""
        return self._under_way(self._moving, user, moved)

    async def _wait_for_room(self, user: str, wanted: Usage, limits: QuotaLimits) -> None:
        while True:
            await self._check(user, wanted, limits)
            used = await self._usage_of(user)
            coming = self._coming.get(user, _NOTHING)
            if not _exceeded(limits, used.plus(coming).plus(wanted)):
                return
            await self._certain.wait()

    @contextmanager
    def _under_way(self, which: defaultdict[str, Usage], user: str, some: Usage) -> Iterator[None]:
        which[user] = which[user].plus(some)
        try:
            yield
        finally:
            which[user] = which[user].minus(some)
            if which[user] == _NOTHING:
                del which[user]
            self._certain.set()
            self._certain = trio.Event()


def _exceeded(limits: QuotaLimits, used: Usage) -> str | None:
    """Return the first resource of which more is used than its limit; None: neither."""
    if limits.storage_bytes is not None and used.size_bytes > limits.storage_bytes:
        return STORAGE
    if limits.messages is not None and used.messages > limits.messages:
        return MESSAGES
    return None
