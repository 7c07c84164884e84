"""The queue of attempts to log in: in turns, after the delays that failures bring, a few hashes at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TypeVar

import trio

from replicator.errors import UnavailableError
from replicator.runtime.addresses import network_of
from replicator.users.attempts.throttle import NAME_CHARACTERS_MAX, Penalty, Throttle
from replicator.users.attempts.turns import Turns

T = TypeVar("T")

HASHES_AT_ONCE = 2
"""Concurrent hash computations: each takes a core, and as much memory as its hash says. One address has one at most."""

PATIENCE_S = 30.0
"""Seconds of waiting for delays and turns; then the client is told to try again, and its place in the queue is free."""


class AttemptQueue:
    """The attempts at the doors of one process, counted for users and networks. Belongs to the event loop."""

    def __init__(self, at_once: int = HASHES_AT_ONCE) -> None:
        """`at_once`: attempts that are checked at a time."""
        self._throttle = Throttle()
        self._hashing = trio.CapacityLimiter(at_once)
        self._pair_turns: Turns[tuple[str, str]] = Turns()
        self._user_turns: Turns[str] = Turns()
        self._address_turns: Turns[str] = Turns()

    async def in_turn(
        self,
        user: str,
        address: str | None,
        check: Callable[[], Awaitable[T | None]],
        patience_s: float = PATIENCE_S,
    ) -> T | None:
        """Check an attempt in its turn, and count it: None is a failure. Raises UnavailableError, and as `check`."""
        network = network_of(address or "")
        async with AsyncExitStack() as turn:
            await self._take_turn(turn, user, network, patience_s)
            login = await check()
            if login is None:
                self._throttle.failed(user, network, trio.current_time())
            else:
                self._throttle.succeeded(user, network)
        return login

    async def out_of_turn(self, check: Callable[[], Awaitable[T]]) -> T:
        """Check what counts as nobody's attempt, when there is a place for hashing. Raises UnavailableError."""
        try:
            with trio.fail_after(PATIENCE_S):
                async with self._hashing:
                    return await check()
        except trio.TooSlowError:
            raise UnavailableError("too many logins are waiting; try again later") from None

    def penalties(self) -> list[Penalty]:
        """Return who is delayed after failed attempts, or would be by another one."""
        return self._throttle.penalties(trio.current_time())

    def delays(self, user: str) -> tuple[float, tuple[str, ...]]:
        """Return for how many seconds at the most attempts at a user are delayed now, and those from where."""
        slowed = [one for one in self.penalties() if one.user == user[:NAME_CHARACTERS_MAX] and one.waits_s]
        addresses = ("everywhere" if one.address is None else one.address for one in slowed)
        return max((one.waits_s for one in slowed), default=0.0), tuple(addresses)

    def forgive(self, names: Iterable[str] | None) -> int:
        """Forget the failed attempts of these users and networks; None: of everybody. Return how many penalties end."""
        before = len(self.penalties())
        self._throttle.forgive(None if names is None else {*names})
        return before - len(self.penalties())

    async def _take_turn(self, turn: AsyncExitStack, user: str, network: str, patience_s: float) -> None:
        """Wait for the delay after failures, and for a place for hashing. Raises UnavailableError.

        During the delay, only attempts of the same pair wait. The turns of the address and of the user are held for no
        longer than a hash takes: each address waits for one place at a time, and so they come round in order.
        """
        try:
            with trio.fail_after(patience_s):
                await turn.enter_async_context(self._pair_turns.of((user, network)))
                while True:
                    await trio.sleep_until(self._throttle.ready_at(user, network))
                    async with AsyncExitStack() as hashing:
                        await hashing.enter_async_context(self._address_turns.of(network))
                        await hashing.enter_async_context(self._user_turns.of(user))
                        # Others may have failed meanwhile: then this attempt sleeps again.
                        if self._throttle.ready_at(user, network) <= trio.current_time():
                            await hashing.enter_async_context(self._hashing)
                            turn.push_async_exit(hashing.pop_all())
                            return
        except trio.TooSlowError:
            raise UnavailableError("too many logins are waiting after failed ones; try again later") from None
