"""Waiting until a change is on enough disks (design section 3: no reported mail is lost)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio
from sortedcontainers import SortedDict

from protocol.values import Dot
from replicator.config import DurabilityConfig, WhenShort
from replicator.errors import DurabilityError

Acknowledged = Callable[[], Iterable[int]]
"""For each neighbour that is up: the last seq of our own origin that is on its disk."""


class Durability:
    """Counts the disks that hold this node's own entries. Belongs to the event loop."""

    def __init__(self, config: DurabilityConfig, acknowledged: Acknowledged) -> None:
        self._config = config
        self._acknowledged = acknowledged
        self._waiting: SortedDict[int, trio.Event] = SortedDict()

    def check(self) -> None:
        """Raises DurabilityError if too few nodes are reachable and the configuration says to refuse then."""
        reachable = 1 + len(list(self._acknowledged()))
        if self._config.when_short is WhenShort.REFUSE and reachable < self._config.copies:
            raise DurabilityError(
                f"{reachable} of the {self._config.copies} nodes that must have it on disk can be reached; try later"
            )

    async def wait(self, dot: Dot) -> None:
        """Return when an entry of this node is on as many disks as are asked for, this one included."""
        if dot.seq <= self._durable():
            return
        event = self._waiting.setdefault(dot.seq, trio.Event())
        try:
            await event.wait()
        finally:
            if self._waiting.get(dot.seq) is event and not event.statistics().tasks_waiting:
                del self._waiting[dot.seq]

    def changed(self) -> None:
        """A peer has acknowledged more, or a link has come or gone."""
        if not self._waiting:
            return
        durable = self._durable()
        while self._waiting and self._waiting.peekitem(0)[0] <= durable:
            self._waiting.popitem(0)[1].set()

    def _durable(self) -> float:
        """The last seq that is on enough disks."""
        others = sorted(self._acknowledged(), reverse=True)
        needed = self._config.copies - 1
        if self._config.when_short is WhenShort.PROCEED:
            needed = min(needed, len(others))
        if needed > len(others):
            return 0
        return others[needed - 1] if needed else float("inf")
