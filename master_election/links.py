"""Link-state routing: the nodes that can be reached, and the neighbour that leads to each (design section 5).

Every node floods one advert of its own links; the highest sequence number of a SID wins. An edge counts only while the
newest adverts of both its ends name it. So a link carries nothing if it works in one direction only, or if its other
end has restarted and not heard of it yet. After a link comes up, both ends send the whole table before anything else;
thus a node that gets a message over a link already knows what the sender knew.

Nothing here waits: links deliver in order or go down, and coming up again repeats everything. But a node may have been
told something false. So each node repeats its advert now and then (`refresh`), under a higher number. A node that knows
a much higher number than the one in an advert replies with the higher advert, until the node that it describes hears of
it and goes above it. No node accepts a number that is too far above its clock (`number_bounds.py`), nor uses one that
others would not accept: in that case it waits for its clock.

A node that has left the cluster for good leaves its last advert behind, and each node gets the adverts of all others
when it starts. So the adverts of `removed` nodes are passed on only while these can be reached: then they are on the
routes of other nodes, which may not know yet that they are removed, and all nodes must compute the same routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from master_election.number_bounds import LEAP, is_believed, may_overrule
from protocol.commands import LinkAdvert
from protocol.values import is_older

MAX_NODES = 1024
"""Adverts kept, and neighbours in one advert: far more than a mail cluster has."""

MAX_LINKS = 1 << 14
"""Neighbours in all adverts kept: as many as 128 fully linked nodes have, some 4 MiB.

The limit is on counts, not names: a node need not be configured on every other one, so any SID may belong to the
cluster.
"""

OLD = 2
"""Lag of sequence numbers up to which an advert may still be in flight; beyond it, one of the nodes has false data."""

Edges = Mapping[str, tuple[str, ...]]
"""SID -> its neighbours over edges that both ends advertise, sorted; without the SIDs that have no such neighbour."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Adverts to send to one neighbour."""

    to: str
    adverts: tuple[LinkAdvert, ...]


@dataclass(frozen=True, slots=True)
class LinkUpdate:
    """Effects of an event. `component_changed`: other nodes, a later run of one of them, or another root.

    `rival`: an advert of another run of this node, numbered above this run's own. A run that has ended leaves few of
    those behind; a live one answers each advert of this node with one.

    `unbelieved`: an advert that was ignored because its number is too high.
    """

    floods: tuple[Flood, ...] = ()
    component_changed: bool = False
    routes_changed: bool = False
    rival: LinkAdvert | None = None
    unbelieved: LinkAdvert | None = None


class LinkTable:
    """One node's view of all nodes and their links. Each node describes itself: its advert has its `priority`.

    `origin` names this run of the node. `clock_ms` is the wall clock, from which sequence numbers start. So the adverts
    of a restarted node win over those of its past runs, which used fewer than one number per millisecond.

    `removed`: SIDs of nodes that have left the cluster for good.
    """

    def __init__(
        self, origin: str, clock_ms: Callable[[], int], priority: int, *, removed: Collection[str] = ()
    ) -> None:
        self.origin = origin
        self._removed = removed
        self._clock_ms = clock_ms
        own = LinkAdvert(origin, priority, clock_ms(), ())
        self.sid = own.sid
        self._priority = priority
        self._round_trips_us: dict[str, int] = {}
        # In order of arrival: when the table is full, the oldest unreachable node goes first.
        self._adverts: dict[str, LinkAdvert] = {own.sid: own}
        self._has_leapt = False  # since the last `tick`
        self._overruled_by: int | None = None  # highest number of another run, to be exceeded at the next `tick`
        self._edges: Edges = {}
        self._component: tuple[str, ...] = (own.sid,)
        self._latest_runs: dict[str, str] = {own.sid: origin}  # SIDs of the component -> the latest origin seen in it
        self._root: tuple[int, str] = (priority, own.sid)
        self._distances: dict[str, dict[str, int]] = {}

    # ---- events

    def neighbour_up(self, sid: str, round_trip_us: int) -> LinkUpdate:
        """Add a link. The returned floods must be sent over it before anything else.

        If the link replaces one to the same node, report that one down first: its other end may have restarted.
        """
        self._round_trips_us[sid] = round_trip_us
        advert = self._readvertise()
        others = tuple(Flood(to, (advert,)) for to in self.neighbours if to != sid)
        table = tuple(advert for known, advert in self._adverts.items() if not self.is_gone(known))
        return self._update((*others, Flood(sid, table)))

    def set_removed(self, removed: Collection[str]) -> LinkUpdate:
        """Replace the SIDs of nodes that have left for good; pass on the adverts of those that count again."""
        gone = [sid for sid in self._adverts if self.is_gone(sid)]
        self._removed = removed
        back = [self._adverts[sid] for sid in gone if not self.is_gone(sid)]
        return self._update(self._flood(*back) if back else ())

    def neighbour_down(self, sid: str) -> LinkUpdate:
        """Remove a link."""
        if self._round_trips_us.pop(sid, None) is None:
            return LinkUpdate()
        return self._update(self._flood(self._readvertise()))

    def set_priority(self, priority: int) -> LinkUpdate:
        """Advertise another priority of this node, if it is another one."""
        if priority == self._priority:
            return LinkUpdate()
        self._priority = priority
        return self._update(self._flood(self._readvertise()))

    def refresh(self) -> LinkUpdate:
        """Repeat this node's advert. To be called now and then."""
        return self._update(self._flood(self._readvertise()))

    def tick(self) -> LinkUpdate:
        """Go above another run of this node that has gone above this one again. To be called at every heartbeat."""
        self._has_leapt, overruled_by, self._overruled_by = False, self._overruled_by, None
        return LinkUpdate() if overruled_by is None else self._update(self._leap(overruled_by))

    def receive(self, adverts: Sequence[LinkAdvert], sender: str) -> LinkUpdate:
        """Handle adverts from the neighbour `sender`."""
        news: list[LinkAdvert] = []
        floods: list[Flood] = []
        rival = unbelieved = None
        for advert in adverts:
            known = self._adverts.get(advert.sid)
            if advert == known or len(advert.neighbours) > MAX_NODES:
                continue
            if not self._believes(advert):
                unbelieved = advert
            elif advert.sid == self.sid:
                rival = self._new_rival(advert) or rival
                floods += self._overrule(advert)
            elif known is not None and advert.sequence < known.sequence - OLD:
                floods.append(Flood(sender, (known,)))
            elif (known is None or advert.sequence > known.sequence) and self._keep(advert):
                news.append(advert)
        if passed_on := tuple(advert for advert in news if not self.is_gone(advert.sid)):
            floods += [Flood(to, passed_on) for to in self.neighbours if to != sender]
        return replace(self._update(tuple(floods)), rival=rival, unbelieved=unbelieved)

    # ---- queries

    @property
    def neighbours(self) -> tuple[str, ...]:
        """SIDs of the links that are up here, even if the other end does not advertise them; sorted."""
        return tuple(sorted(self._round_trips_us))

    @property
    def sids(self) -> tuple[str, ...]:
        """The nodes whose advert is known and that are not gone, reachable or not, with this one."""
        return tuple(sid for sid in self._adverts if not self.is_gone(sid))

    def is_gone(self, sid: str) -> bool:
        """Return True for a node that has left the cluster for good and cannot be reached."""
        return sid in self._removed and sid not in self._component

    @property
    def component(self) -> tuple[str, ...]:
        """SIDs that can be reached, this node included; sorted."""
        return self._component

    def origin_of(self, sid: str) -> str | None:
        """Return the origin of a node's current run, or None if the node cannot be reached."""
        return self._adverts[sid].origin if sid in self._component else None

    @property
    def root(self) -> str:
        """The node of the component with the lowest (priority, SID).

        All nodes that see the whole component agree on it.
        """
        return self._root[1]

    @property
    def edges(self) -> Edges:
        """All known edges, also those between nodes that can no longer be reached, as they last said."""
        return self._edges

    def next_hop(self, to: str) -> str | None:
        """Return the neighbour that leads to `to`, or None if `to` is this node or cannot be reached."""
        return self.next_hop_from(self.sid, to)

    def next_hop_from(self, node: str, to: str) -> str | None:
        """Return the neighbour by which `node` reaches `to`: fewest hops, then lowest SID.

        Every node computes the same.
        """
        if to not in self._edges or node == to:
            return None
        if to not in self._distances:
            self._distances[to] = _hops_to(self._edges, to)
        hops = self._distances[to]
        if node not in hops:
            return None
        return next(near for near in self._edges[node] if hops.get(near) == hops[node] - 1)

    def downstream(self, source: str) -> tuple[str, ...]:
        """Return the neighbours that hear `source` through this node: its branches in the tree rooted at `source`."""
        return tuple(near for near in self.neighbours if self.next_hop_from(near, source) == self.sid)

    def ships(self, origin: str, neighbour: str) -> bool:
        """Return True if this node has to send entries of the node `origin` to `neighbour`.

        If no route leads to the origin, or if it is a past run of the neighbour itself, every node that has the entries
        sends them: a duplicate is harmless, a missing entry is not.
        """
        return origin == self.sid or self.next_hop_from(neighbour, origin) in (None, self.sid)

    # ---- the table

    def _believes(self, advert: LinkAdvert) -> bool:
        """Return True if the advert's number is low enough; for an advert of this node, low enough to go above it."""
        return (may_overrule if advert.sid == self.sid else is_believed)(advert.sequence, self._clock_ms())

    def _readvertise(self, above: int = 0) -> LinkAdvert:
        sequence = max(self._adverts[self.sid].sequence, above) + 1
        neighbours = tuple((sid, self._round_trips_us[sid]) for sid in self.neighbours)
        advert = LinkAdvert(self.origin, self._priority, sequence, neighbours)
        self._adverts[self.sid] = advert
        return advert

    def _new_rival(self, advert: LinkAdvert) -> LinkAdvert | None:
        """Return the advert if it is of another run of this node and not numbered below this run's last one."""
        is_above = advert.origin != self.origin and advert.sequence >= self._adverts[self.sid].sequence
        return advert if is_above and self._overruled_by is None else None

    def _overrule(self, other: LinkAdvert) -> tuple[Flood, ...]:
        """Go above an advert of this node by another run, or a copy: at once, or, after a recent leap, at `tick`.

        Otherwise two live runs would keep going above each other without a pause.
        """
        if other.sequence < self._adverts[self.sid].sequence:
            return ()
        if other.origin == self.origin:
            return self._flood(self._readvertise(above=other.sequence))
        if self._has_leapt:
            self._overruled_by = max(other.sequence, self._overruled_by or 0)
            return ()
        return self._leap(other.sequence)

    def _leap(self, over: int) -> tuple[Flood, ...]:
        self._has_leapt = True
        return self._flood(self._readvertise(above=over + LEAP))

    def _flood(self, *adverts: LinkAdvert) -> tuple[Flood, ...]:
        return tuple(Flood(to, adverts) for to in self.neighbours)

    def _keep(self, advert: LinkAdvert) -> bool:
        """Store the advert. Return True if there was room, perhaps made by dropping unreachable nodes."""
        self._adverts.pop(advert.sid, None)
        self._adverts[advert.sid] = advert
        reachable = frozenset(self._component)
        unreachable = [sid for sid in self._adverts if sid not in reachable]
        while not self._has_room() and advert.sid in self._adverts:
            del self._adverts[unreachable.pop(0) if unreachable else advert.sid]
        return advert.sid in self._adverts

    def _has_room(self) -> bool:
        links = sum(len(advert.neighbours) for advert in self._adverts.values())
        return len(self._adverts) <= MAX_NODES and links <= MAX_LINKS

    def _update(self, floods: tuple[Flood, ...]) -> LinkUpdate:
        edges = _edges(self._adverts)
        routes_changed = edges != self._edges
        if routes_changed:
            self._edges, self._distances = edges, {}
        before, reached = (self._latest_runs, self._root), self._component
        self._component = tuple(sorted(_hops_to(edges, self.sid)))
        if back := [sid for sid in self._component if sid in self._removed and sid not in reached]:
            floods += self._flood(*(self._adverts[sid] for sid in back))  # they were passed on to nobody before
        self._latest_runs = {sid: self._latest_run(self._adverts[sid]) for sid in self._component}
        self._root = min((self._adverts[sid].priority, sid) for sid in self._component)
        return LinkUpdate(floods, before != (self._latest_runs, self._root), routes_changed)

    def _latest_run(self, advert: LinkAdvert) -> str:
        """Return the later of the known run of a node and the advertised one.

        A run that has ended may have been a master, so a new run counts as a change; two runs that keep going above
        each other count as one start only.
        """
        known = self._latest_runs.get(advert.sid)
        return advert.origin if known is None or is_older(known, advert.origin) else known


def _edges(adverts: Mapping[str, LinkAdvert]) -> Edges:
    named = {sid: {near for near, _ in advert.neighbours if near != sid} for sid, advert in adverts.items()}
    mutual = {sid: tuple(sorted(near for near in nears if sid in named.get(near, ()))) for sid, nears in named.items()}
    return {sid: nears for sid, nears in mutual.items() if nears}


def _hops_to(edges: Edges, to: str) -> dict[str, int]:
    """Return the number of hops to `to` from every node that reaches it, by breadth-first search."""
    hops = {to: 0}
    queue = deque([to])
    while queue:
        node = queue.popleft()
        for near in edges.get(node, ()):
            if near not in hops:
                hops[near] = hops[node] + 1
                queue.append(near)
    return hops
