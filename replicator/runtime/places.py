"""Places for the connections of one door: who holds one, and who is dropped for a newcomer.

A connection costs a task, a socket and a buffer. One for which the node has nothing in work is a stranger: it has not
logged in, is not sending a message, has made no request. Strangers cost an attacker nothing, so they cannot keep others
out: where places run out, the oldest stranger is dropped, or if it is the places of one address, the oldest of that
address. Only if there are no strangers, the newcomer is refused. The others are never dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import NamedTuple, Protocol

import trio

from replicator.runtime.addresses import is_loopback, network_of


class Limit(NamedTuple):
    """A limit, and its key in the configuration's section `[limits]`, by which refusals are counted."""

    most: int
    key: str


class PlaceLimits(NamedTuple):
    """The limits of one door. None: no limit but the others."""

    total: Limit
    strangers: Limit | None = None
    per_address: Limit | None = None  # strangers and others together
    strangers_per_address: Limit | None = None
    strangers_on_loopback: Limit | None = None  # instead, where a proxy or web mail connects for many people
    per_user: Limit | None = None


Reached = tuple[Limit | None, int, "dict[Place, None]"]
"""A limit, how many places count against it, and the strangers of whom the first is dropped if it is reached."""


class Doorkeeper(Protocol):
    """Interface that gives places of one door to its connections: `Places`, or a class that asks it over a channel."""

    def admit(self, address: str) -> AbstractAsyncContextManager[Place | None]:
        """Hold a place while the block runs. Yields None if there is none.

        If the place is dropped, the block is cancelled, and `Place.dropped` is True.
        """
        ...

    async def log_in(self, place: Place, user: str) -> bool:
        """Keep the place for a user until the end. Return False if the user has too many connections."""
        ...


class Keeper(Protocol):
    """Interface by which a place reports that its holder is busy, or no longer busy."""

    def keep(self, place: Place) -> None:
        """See `Place.busy`."""
        ...

    def let_go(self, place: Place) -> None:
        """See `Place.busy`."""
        ...


class Place:
    """One connection's place. A stranger's, until `Places.log_in`, and while no `busy` block runs."""

    def __init__(self, places: Keeper, address: str) -> None:
        self._places = places
        self.network = network_of(address)
        self.on_loopback = is_loopback(address)
        self.scope = trio.CancelScope()
        self.dropped = False

    def drop(self) -> None:
        """Take the place away from its holder."""
        self.dropped = True
        self.scope.cancel()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the place while the block runs. Afterwards it is the youngest stranger's, or still the user's."""
        self._places.keep(self)
        try:
            yield
        finally:
            self._places.let_go(self)


class Places:
    """The places of one door. `refused` is called with the key of a limit because of which a client loses or gets none.

    Belongs to the event loop; a place belongs to whoever was admitted.
    """

    def __init__(self, limits: PlaceLimits, refused: Callable[[str], None]) -> None:
        self._limits = limits
        self._refused = refused
        self._open = 0
        self._at_address: Counter[str] = Counter()  # by network
        self._strangers: dict[Place, None] = {}  # oldest first
        self._strangers_at: dict[str, dict[Place, None]] = {}  # by network, oldest first
        self._users: dict[Place, str] = {}
        self._of_user: Counter[str] = Counter()

    @asynccontextmanager
    async def admit(self, address: str) -> AsyncIterator[Place | None]:
        """See `Doorkeeper`."""
        place = Place(self, address)
        if not self.enter(place):
            yield None
            return
        try:
            with place.scope:
                yield place
        finally:
            self.leave(place)

    def enter(self, place: Place) -> bool:
        """Give a newcomer this place, until `leave`. Return False if there is none."""
        if not self._make_room(self._newcomers_limits(place)):
            return False
        self._open += 1
        self._at_address[place.network] += 1
        self._add_stranger(place)
        return True

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of open connections, of strangers among them, and of those that have logged in."""
        return self._open, len(self._strangers), len(self._users)

    async def log_in(self, place: Place, user: str) -> bool:
        """See `Doorkeeper`."""
        await trio.lowlevel.checkpoint()
        return self.give(place, user)

    def give(self, place: Place, user: str) -> bool:
        """Do as `log_in`, at once."""
        limit = self._limits.per_user
        if limit is not None and self._of_user[user] >= limit.most:
            self._refused(limit.key)
            return False
        if not place.dropped:
            self._remove_stranger(place)
            self._users[place] = user
            self._of_user[user] += 1
        return True

    def keep(self, place: Place) -> None:
        """See `Place.busy`."""
        if not place.dropped:
            self._remove_stranger(place)

    def let_go(self, place: Place) -> None:
        """See `Place.busy`."""
        if not place.dropped and place not in self._users:
            self._make_room(self._strangers_limits(place))
            self._add_stranger(place)

    def _newcomers_limits(self, place: Place) -> Iterator[Reached]:
        """Yield the limits as they are, each computed when it is asked for: a drop for one may help another."""
        same = self._strangers_at.get(place.network, {})
        yield self._limits.per_address, self._at_address[place.network], same
        yield from self._strangers_limits(place)
        yield self._limits.total, self._open, self._strangers

    def _strangers_limits(self, place: Place) -> Iterator[Reached]:
        same = self._strangers_at.get(place.network, {})
        on_loopback = place.on_loopback and self._limits.strangers_on_loopback
        yield on_loopback or self._limits.strangers_per_address, len(same), same
        yield self._limits.strangers, len(self._strangers), self._strangers

    def _make_room(self, limits: Iterator[Reached]) -> bool:
        """Drop a stranger if a limit is reached. Return False if one is, and there is no stranger."""
        for limit, taken, strangers in limits:
            if limit is not None and taken >= limit.most:
                self._refused(limit.key)
                oldest = next(iter(strangers), None)
                if oldest is None:
                    return False
                self.leave(oldest)
                oldest.drop()
        return True

    def leave(self, place: Place) -> None:
        """Free a place that was entered, unless it has been dropped."""
        if place.dropped:
            return
        self._open -= 1
        _decrement(self._at_address, place.network)
        self._remove_stranger(place)
        user = self._users.pop(place, None)
        if user is not None:
            _decrement(self._of_user, user)

    def _add_stranger(self, place: Place) -> None:
        self._strangers[place] = None
        self._strangers_at.setdefault(place.network, {})[place] = None

    def _remove_stranger(self, place: Place) -> None:
        """Remove it from the strangers, if it is one."""
        if place in self._strangers:
            del self._strangers[place]
            same = self._strangers_at[place.network]
            del same[place]
            if not same:
                del self._strangers_at[place.network]


def _decrement(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
