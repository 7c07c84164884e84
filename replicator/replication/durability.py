"""Waiting until a change is on enough disks (design section 3: no reported mail is lost)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import trio
from sortedcontainers import SortedDict

from protocol.values import Dot
from replicator.config import DurabilityConfig, WhenShort
from replicator.errors import DurabilityError

log = logging.getLogger(__name__)

Acknowledged = Callable[[], Iterable[int]]
"""For each neighbour that is up: the last seq of our own origin that is on its disk."""


class Durability:
    """Counts the disks that hold this node's own entries. Belongs to the event loop."""

    def __init__(self, config: DurabilityConfig, acknowledged: Acknowledged) -> None:
        self._config = config
        self._acknowledged = acknowledged
        self._was_short = config.copies > 1  # until the first links are up
        self._waiting: SortedDict[int, trio.Event] = SortedDict()

    @property
    def reachable(self) -> int:
        """How many nodes can have a change on disk now, this one included."""
        return 1 + len(list(self._acknowledged()))

    @property
    def is_short(self) -> bool:
        """Whether those are fewer than the configuration asks for."""
        return self.reachable < self._config.copies

    def check(self) -> None:
        """Raises DurabilityError if too few nodes are reachable and the configuration says to refuse then."""
        if self._config.when_short is WhenShort.REFUSE and self.is_short:
            wanted = f"{self.reachable} of the {self._config.copies} nodes that must have it on disk"
            raise DurabilityError(f"{wanted} can be reached; try later")

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
        self._say_if_short()
        if not self._waiting:
            return
        durable = self._durable()
        while self._waiting and self._waiting.peekitem(0)[0] <= durable:
            self._waiting.popitem(0)[1].set()

    def _say_if_short(self) -> None:
        if self.is_short == self._was_short:
            return
        self._was_short = self.is_short
        refusing = self._config.when_short is WhenShort.REFUSE
        if self._was_short:
            what = "changes are refused" if refusing else "clients hear OK with fewer copies than that"
            log.warning("%d of %d copies can be made: %s", self.reachable, self._config.copies, what)
        else:
            log.info("%d copies can be made", self._config.copies)

    def _durable(self) -> float:
        """The last seq that is on enough disks."""
        others = sorted(self._acknowledged(), reverse=True)
        needed = self._config.copies - 1
        if self._config.when_short is WhenShort.PROCEED:
            needed = min(needed, len(others))
        if needed > len(others):
            return 0
        return others[needed - 1] if needed else float("inf")
