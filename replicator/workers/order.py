"""The order by which the core tells a door's process what to be, and its form between them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass

from replicator.config import Config
from replicator.mail_doors import Protocol
from replicator.runtime.logs.lines import LogSettings


@dataclass(frozen=True)
class Order:
    """The work of a door. `sockets`: file descriptors of the listening sockets that it has inherited.

    `users_key`: see `UserDirectory`.
    """

    number: int
    config: Config
    log: LogSettings
    sockets: Mapping[Protocol, tuple[int, ...]]
    users_key: bytes

    def packed(self) -> bytes:
        """Return the order as `unpacked` takes it."""
        return pickle.dumps(self)

    @staticmethod
    def unpacked(packed: bytes) -> Order:
        """Return an order that the core has packed: nobody else can write to the connection."""
        order = pickle.loads(packed)  # noqa: S301
        assert isinstance(order, Order)
        return order
