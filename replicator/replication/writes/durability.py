"""Waiting until a change is on enough disks (design section 3: no reported mail is lost)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import trio
from sortedcontainers import SortedDict

from protocol.values import Dot, sid_of
from replicator.config import DurabilityConfig, WhenShort
from replicator.errors import DurabilityError
from replicator.replication.writes.lagging_peers import LaggingPeers

log = logging.getLogger(__name__)

Reachable = Callable[[], Iterable[str]]
"""A source of the SIDs of the other nodes that can be reached now, over any number of links."""


class Durability:
    """The count of disks that hold an entry. Belongs to the event loop.

    A node holds the entries that it has acknowledged, and those that it has numbered in its present run: no entry
    leaves a node before it is on that node's disk. Entries numbered in a past run may be lost, if the disk was restored
    from a backup. A node with a long backlog cannot hold new entries soon, so it counts as unreachable until it has
    caught up. If `config` is replaced, call `changed`.
    """

    def __init__(self, config: DurabilityConfig, reachable: Reachable, lagging_peers: LaggingPeers) -> None:
        self.config = config
        self._others = reachable
        self._lagging_peers = lagging_peers
        self._known: set[str] = set()  # nodes that could be reached at the last look
        self._held: dict[str, dict[str, int]] = {}  # SID -> context on that node's disk
        self._origins: dict[str, str] = {}  # SID -> origin of its present run, once known
        self._was_short = config.copies > 1  # until the first links are up
        self._waiting: dict[str, SortedDict[int, trio.Event]] = {}  # by origin

    @property
    def reachable(self) -> int:
        """Number of nodes that are known to get changes to disk soon, this one included."""
        return 1 + sum(not self._has_yet_to_catch_up(sid) for sid in self._others())

    @property
    def is_short(self) -> bool:
        """True if `reachable` is fewer than the configured copies."""
        return self.reachable < self.config.copies

    def check(self) -> None:
        """Raise DurabilityError if too few nodes are reachable and the configuration says to refuse changes then."""
        if self.config.when_short is WhenShort.REFUSE and self.is_short:
            wanted = f"only {self.reachable} of the {self.config.copies} nodes that must have the change on disk"
            raise DurabilityError(f"{wanted} can be reached{self._who_is_behind()}; try later")

    async def wait(self, dot: Dot) -> None:
        """Return when an entry of this node's log is on as many disks as are configured, this one included."""
        if dot.seq <= self._durable(dot.origin):
            return
        waiting = self._waiting.setdefault(dot.origin, SortedDict())
        event = waiting.setdefault(dot.seq, trio.Event())
        try:
            await event.wait()
        finally:
            if waiting.get(dot.seq) is event and not event.statistics().tasks_waiting:
                del waiting[dot.seq]
            if not waiting and self._waiting.get(dot.origin) is waiting:
                del self._waiting[dot.origin]

    def linked(self, sid: str, origin: str) -> None:
        """Forget what a newly linked node held: its data may come from a backup, so it reports its context anew."""
        self._held[sid], self._origins[sid] = {}, origin
        self._lagging_peers.came(sid)

    def acknowledged(self, sid: str, context: Mapping[str, int]) -> None:
        """Note that a node's disk holds at least this context; reports may arrive out of order."""
        held = self._held.setdefault(sid, {})
        for origin, seq in context.items():
            held[origin] = max(seq, held.get(origin, 0))
            self._wake(origin)
        if self._lagging_peers.is_new(sid):
            self._lagging_peers.look(sid, held)

    def changed(self) -> None:
        """Count anew, after nodes have come or gone, or time has passed."""
        known, self._known = self._known, set(self._others())
        for sid in self._known - known:
            self._lagging_peers.came(sid)
        for sid in known - self._known:
            self._lagging_peers.went(sid)
            self._held.pop(sid, None)  # the node reports its context anew: its data may come from a backup
        for sid in self._known:
            self._lagging_peers.look(sid, self._held.get(sid, {}))
        for origin in list(self._waiting):
            self._wake(origin)

    async def run(self, interval_s: float) -> None:
        """Check regularly which nodes lag too far behind to be waited for, until cancelled.

        A shortage is logged only here, so that a node that stops reports none because its links end.
        """
        while True:
            await trio.sleep(interval_s)
            self.changed()
            self._say_if_short()

    def _wake(self, origin: str) -> None:
        waiting = self._waiting.get(origin)
        if not waiting:
            return
        durable = self._durable(origin)
        while waiting and waiting.peekitem(0)[0] <= durable:
            waiting.popitem(0)[1].set()

    def _durable(self, origin: str) -> float:
        """Return the last seq of an origin that is on enough disks."""
        author = sid_of(origin)
        in_this_run = self._origins.get(author, origin) == origin
        held = [
            float("inf") if sid == author and in_this_run else self._held.get(sid, {}).get(origin, 0)
            for sid in self._others()
        ]
        needed = self.config.copies - 1
        if self.config.when_short is WhenShort.PROCEED:
            needed = min(needed, sum(sid not in self._lagging_peers for sid in self._others()))
        if needed > len(held):
            return 0
        return sorted(held, reverse=True)[needed - 1] if needed else float("inf")

    def _say_if_short(self) -> None:
        if self.is_short == self._was_short:
            return
        self._was_short = self.is_short
        refusing = self.config.when_short is WhenShort.REFUSE
        if self._was_short:
            what = "changes are refused" if refusing else "clients hear OK with fewer copies"
            why = self._who_is_behind()
            log.warning("only %d of %d copies can be made%s: %s", self.reachable, self.config.copies, why, what)
        else:
            log.info("%d copies can be made", self.config.copies)

    def _who_is_behind(self) -> str:
        names = ", ".join(sorted(sid for sid in self._others() if self._has_yet_to_catch_up(sid)))
        return f" (waiting for {names} to catch up)" if names else ""

    def _has_yet_to_catch_up(self, sid: str) -> bool:
        """Return True if the node lags or is new. For reports only: clients do wait for a new node."""
        return sid in self._lagging_peers or self._lagging_peers.is_new(sid)
