"""The places of a door whose connections are in several processes: both ends. The limits hold for all together.

The core gives and drops places as if all connections were its own. If it drops one whose holder has just become busy,
the holder finishes what it does first: its place counts as free for that long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

from replicator.runtime.places import Place, Places
from replicator.workers.channel import Channel


class RemotePlace(Place):
    """A place at a door's process. `number` names it in the core."""

    def __init__(self, places: RemotePlaces, address: str, number: int) -> None:
        super().__init__(places, address)
        self.number = number
        self.is_busy = False
        self.is_due = False  # to be dropped

    def drop(self) -> None:
        """See `Place`. Not in the middle of a `busy` block."""
        if self.is_busy:
            self.is_due = True
        else:
            super().drop()


class RemotePlaces:
    """The places of a door in another process; see `Doorkeeper`. `protocol`: imap or lmtp, as in `PlaceCalls`."""

    def __init__(self, channel: Channel, protocol: str) -> None:
        self._channel = channel
        self._protocol = protocol
        self._numbers = count(1)
        self._places: dict[int, RemotePlace] = {}
        channel.quick_calls[f"{protocol} dropped"] = self._dropped

    @asynccontextmanager
    async def admit(self, address: str) -> AsyncIterator[Place | None]:
        """See `Doorkeeper`."""
        number = next(self._numbers)
        place = self._places[number] = RemotePlace(self, address, number)
        try:
            if not await self._channel.call(f"{self._protocol} enter", number, address):
                yield None
                return
            with place.scope:
                yield place
        finally:
            del self._places[number]
            self._channel.tell(f"{self._protocol} leave", number)

    async def log_in(self, place: Place, user: str) -> bool:
        """See `Doorkeeper`."""
        assert isinstance(place, RemotePlace)
        return bool(await self._channel.call(f"{self._protocol} log_in", place.number, user))

    def _dropped(self, number: int) -> None:
        """Take a place away: the core has given it to somebody else."""
        if (place := self._places.get(number)) is not None:
            place.drop()

    def keep(self, place: Place) -> None:
        """See `Place.busy`."""
        assert isinstance(place, RemotePlace)
        place.is_busy = True
        self._channel.tell(f"{self._protocol} keep", place.number)

    def let_go(self, place: Place) -> None:
        """See `Place.busy`."""
        assert isinstance(place, RemotePlace)
        place.is_busy = False
        if place.is_due:
            place.drop()
        self._channel.tell(f"{self._protocol} let_go", place.number)


class _HeldPlace(Place):
    """A place that a door's process holds."""

    def __init__(self, places: Places, address: str, on_drop: Callable[[], None]) -> None:
        super().__init__(places, address)
        self._on_drop = on_drop

    def drop(self) -> None:
        """See `Place`."""
        super().drop()
        self._on_drop()


class PlaceCalls:
    """The core's answers to calls of one door's process about its places."""

    def __init__(self, channel: Channel, protocol: str, places: Places) -> None:
        self._channel = channel
        self._protocol = protocol
        self._all = places
        self._held: dict[int, Place] = {}
        channel.quick_calls |= {
            f"{protocol} enter": self._enter,
            f"{protocol} leave": self._leave,
            f"{protocol} keep": lambda number: self._all.keep(self._held[number]),
            f"{protocol} let_go": lambda number: self._all.let_go(self._held[number]),
            f"{protocol} log_in": lambda number, user: self._all.give(self._held[number], user),
        }

    def close(self) -> None:
        """Free all places of the door."""
        for number in [*self._held]:
            self._leave(number)

    def _enter(self, number: int, address: str) -> bool:
        place = _HeldPlace(self._all, address, partial(self._channel.tell, f"{self._protocol} dropped", number))
        is_admitted = self._all.enter(place)
        if is_admitted:
            self._held[number] = place
        return is_admitted

    def _leave(self, number: int) -> None:
        if (place := self._held.pop(number, None)) is not None:  # else it was not admitted
            self._all.leave(place)
