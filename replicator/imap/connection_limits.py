"""Limits on clients' use of the node: numbers of connections.

A connection costs a task, a socket and a buffer; a command adds at most the limits of its frame. Connections that have
not logged in share only a part of all places, so that they cannot keep users out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from replicator.runtime.addresses import is_loopback, network_of


@dataclass(slots=True)
class ConnectionLimits:
    """Open connections: their total, those not logged in by network, and the others by user."""

    limit: int = 1000
    limit_strangers: int = 250
    limit_strangers_per_address: int = 20  # people behind one router who log in at once
    limit_strangers_on_loopback: int = 100  # a proxy or web mail connects for many people
    limit_per_user: int = 50  # a person's few devices, each with a few connections
    open: int = 0
    strangers: Counter[str] = field(default_factory=Counter)  # by network
    users: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def admit(self, address: str) -> Iterator[Place | None]:
        """Hold a place while the block runs. Yields None and counts nothing if there are too many connections."""
        network = network_of(address)
        per_address = self.limit_strangers_on_loopback if is_loopback(address) else self.limit_strangers_per_address
        if (
            self.open >= self.limit
            or self.strangers.total() >= self.limit_strangers
            or self.strangers[network] >= per_address
        ):
            yield None
            return
        self.open += 1
        place = Place(self, self.strangers, network)
        try:
            yield place
        finally:
            place.leave()
            self.open -= 1


class Place:
    """One connection's place: counted by network until the client logs in, by user afterwards."""

    def __init__(self, connections: ConnectionLimits, counter: Counter[str], key: str) -> None:
        self._connections = connections
        self._counter, self._key = counter, key
        counter[key] += 1

    def log_in(self, user: str) -> bool:
        """Move the place to the user. Returns False and changes nothing if the user has too many connections."""
        users = self._connections.users
        if users[user] >= self._connections.limit_per_user:
            return False
        self.leave()
        self._counter, self._key = users, user
        users[user] += 1
        return True

    def leave(self) -> None:
        """Give up the place."""
        self._counter[self._key] -= 1
        if not self._counter[self._key]:
            del self._counter[self._key]
