"""What clients may take of the node together: connections.

A connection costs a task, a socket and a buffer; a command adds at most the limits of its frame. It is a stranger's
until it logs in; strangers have only a part of all places, so that they cannot keep users out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from replicator.addresses import is_loopback, network_of


@dataclass(slots=True)
class Connections:
    """How many are open, altogether and by whose they are."""

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
        """A place for as long as the block runs; None, and nothing is counted, if there are too many connections."""
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
    """One connection's place, a stranger's at first."""

    def __init__(self, connections: Connections, counter: Counter[str], key: str) -> None:
        self._connections = connections
        self._counter, self._key = counter, key
        counter[key] += 1

    def log_in(self, user: str) -> bool:
        """The place is the user's from here on; False, and it stays a stranger's, if the user has too many."""
        users = self._connections.users
        if users[user] >= self._connections.limit_per_user:
            return False
        self.leave()
        self._counter, self._key = users, user
        users[user] += 1
        return True

    def leave(self) -> None:
        """Count it no more."""
        self._counter[self._key] -= 1
        if not self._counter[self._key]:
            del self._counter[self._key]
