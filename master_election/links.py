"""Link-state routing: which nodes can be reached, and over which neighbour (design section 5).

Every node floods one advert of its own links; the highest sequence number of a SID wins. An edge counts only
while the newest adverts of both its ends name it, so that a link which works in one direction, or whose other end
has restarted and not heard of it yet, carries nothing. After a link comes up both ends send the whole table before
anything else; thus a node that gets a message over a link already knows what the sender knew.

Nothing here waits: links deliver in order or go down, and coming up again repeats everything. But what one node was
told may be wrong. So each says again what holds of it now and then (`refresh`), under a higher number; and whoever has
a much higher one than it is told answers with that, until the node hears of it that it is of, and goes above it. No
node takes in a number that is too far above its clock (`number_bounds.py`), nor goes so high itself that others would
not take that in: then it waits for its clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from master_election.number_bounds import LEAP, is_believed, may_overrule
from protocol.commands import LinkAdvert
from protocol.values import is_older

MAX_NODES = 1024
"""Adverts kept, and neighbours in an advert: far beyond a mail cluster."""

MAX_LINKS = 1 << 14
"""Neighbours in all adverts kept: as many as 128 nodes have that are all linked, some 4 MiB.

Numbers, not names: a node need not be configured at each other one, so any SID may be one of the cluster.
"""

OLD = 2
"""An advert that is older by more than this is not on its way still, or what is known in its place is wrong."""

Edges = Mapping[str, tuple[str, ...]]
"""SID -> its neighbours over edges that both ends advertise, sorted; without those that have none."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Adverts to be sent to one neighbour."""

    to: str
    adverts: tuple[LinkAdvert, ...]


@dataclass(frozen=True, slots=True)
class LinkUpdate:
    """What an event calls for. `component_changed`: other nodes, a later run of one of them, or another root.

    `rival`: an advert of another run of this node, which was above its own. A run that is gone leaves few of those
    behind; one that is alive answers each advert of this node with one.

    `unbelieved`: an advert that was passed over because its number is too high.
    """

    floods: tuple[Flood, ...] = ()
    component_changed: bool = False
    routes_changed: bool = False
    rival: LinkAdvert | None = None
    unbelieved: LinkAdvert | None = None


class LinkTable:
    """One node's picture of all nodes and their links. Each node speaks for itself: its advert has its `priority`.

    `origin` names this run of the node. `clock_ms` is the wall clock: numbers begin with it, so that a restarted node's
    adverts win over those of its past, which took fewer than one number a millisecond.
    """

    def __init__(self, origin: str, clock_ms: Callable[[], int], priority: int) -> None:
        self.origin = origin
        self._clock_ms = clock_ms
        own = LinkAdvert(origin, priority, clock_ms(), ())
        self.sid = own.sid
        self._priority = priority
        self._round_trips_us: dict[str, int] = {}
        # In the order of their arrival: what is unreachable and oldest goes first when the table is full.
        self._adverts: dict[str, LinkAdvert] = {own.sid: own}
        self._has_leapt = False  # since the last `tick`
        self._overruled_by: int | None = None  # the highest number of another run, to be leapt over at the next `tick`
        self._edges: Edges = {}
        self._component: tuple[str, ...] = (own.sid,)
        self._latest_runs: dict[str, str] = {own.sid: origin}  # SIDs of the component -> the latest origin seen in it
        self._root: tuple[int, str] = (priority, own.sid)
        self._distances: dict[str, dict[str, int]] = {}

    # ---- events

    def neighbour_up(self, sid: str, round_trip_us: int) -> LinkUpdate:
        """A link stands, and anything sent over it comes after what this asks to send.

        A link that replaces one to the same node is reported down first: its other end may have restarted.
        """
        self._round_trips_us[sid] = round_trip_us
        advert = self._readvertise()
        others = tuple(Flood(to, (advert,)) for to in self.neighbours if to != sid)
        return self._update((*others, Flood(sid, tuple(self._adverts.values()))))

    def neighbour_down(self, sid: str) -> LinkUpdate:
        """A link is gone."""
        if self._round_trips_us.pop(sid, None) is None:
            return LinkUpdate()
        return self._update(self._flood(self._readvertise()))

    def refresh(self) -> LinkUpdate:
        """Say again how this node is linked. To be called now and then."""
        return self._update(self._flood(self._readvertise()))

    def tick(self) -> LinkUpdate:
        """Go above another run of this node that has gone above this one again. To be called at every heartbeat."""
        self._has_leapt, overruled_by, self._overruled_by = False, self._overruled_by, None
        return LinkUpdate() if overruled_by is None else self._update(self._leap(overruled_by))

    def receive(self, adverts: Sequence[LinkAdvert], sender: str) -> LinkUpdate:
        """Adverts came from the neighbour `sender`."""
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
        if news:
            floods += [Flood(to, tuple(news)) for to in self.neighbours if to != sender]
        return replace(self._update(tuple(floods)), rival=rival, unbelieved=unbelieved)

    # ---- queries

    @property
    def neighbours(self) -> tuple[str, ...]:
        """SIDs of the links that are up here, whether or not the other end says so too; sorted."""
        return tuple(sorted(self._round_trips_us))

    @property
    def sids(self) -> tuple[str, ...]:
        """Nodes of which an advert is here, whether or not they can be reached; this one included."""
        return tuple(self._adverts)

    @property
    def component(self) -> tuple[str, ...]:
        """SIDs that can be reached, this node included; sorted."""
        return self._component

    def origin_of(self, sid: str) -> str | None:
        """The run of a node that can be reached; None: it cannot be."""
        return self._adverts[sid].origin if sid in self._component else None

    @property
    def root(self) -> str:
        """The node of the component with the lowest (priority, SID). All of a component that see it whole agree."""
        return self._root[1]

    def next_hop(self, to: str) -> str | None:
        """The neighbour over which `to` is reached; None if it is this node or cannot be reached."""
        return self.next_hop_from(self.sid, to)

    def next_hop_from(self, node: str, to: str) -> str | None:
        """The neighbour over which `node` reaches `to`: fewest hops, then lowest SID. Every node answers alike."""
        if to not in self._edges or node == to:
            return None
        if to not in self._distances:
            self._distances[to] = _hops_to(self._edges, to)
        hops = self._distances[to]
        if node not in hops:
            return None
        return next(near for near in self._edges[node] if hops.get(near) == hops[node] - 1)

    def downstream(self, source: str) -> tuple[str, ...]:
        """Neighbours that hear `source` through this node: the branches here of the tree with `source` as root."""
        return tuple(near for near in self.neighbours if self.next_hop_from(near, source) == self.sid)

    def ships(self, origin: str, neighbour: str) -> bool:
        """Whether this node is the one to send entries of the node `origin` to `neighbour`.

        What no route leads to, and a past run of the neighbour itself, everybody ships who has it: twice is
        harmless, never is not.
        """
        return origin == self.sid or self.next_hop_from(neighbour, origin) in (None, self.sid)

    # ---- the table

    def _believes(self, advert: LinkAdvert) -> bool:
        """Of itself a node takes in only what it may go above."""
        return (may_overrule if advert.sid == self.sid else is_believed)(advert.sequence, self._clock_ms())

    def _readvertise(self, above: int = 0) -> LinkAdvert:
        sequence = max(self._adverts[self.sid].sequence, above) + 1
        neighbours = tuple((sid, self._round_trips_us[sid]) for sid in self.neighbours)
        advert = LinkAdvert(self.origin, self._priority, sequence, neighbours)
        self._adverts[self.sid] = advert
        return advert

    def _new_rival(self, advert: LinkAdvert) -> LinkAdvert | None:
        """The advert if it is of another run of this node, and above the last one that this run has said."""
        is_above = advert.origin != self.origin and advert.sequence >= self._adverts[self.sid].sequence
        return advert if is_above and self._overruled_by is None else None

    def _overrule(self, other: LinkAdvert) -> tuple[Flood, ...]:
        """Our own advert from another run, or a copy. Go above it: at once, or, if we have just done so, at `tick`.

        Two runs that both live would go above each other without a pause.
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

    def _flood(self, advert: LinkAdvert) -> tuple[Flood, ...]:
        return tuple(Flood(to, (advert,)) for to in self.neighbours)

    def _keep(self, advert: LinkAdvert) -> bool:
        """Whether there is room for it, be it in place of what is unreachable."""
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
        before = self._latest_runs, self._root
        self._component = tuple(sorted(_hops_to(edges, self.sid)))
        self._latest_runs = {sid: self._latest_run(self._adverts[sid]) for sid in self._component}
        self._root = min((self._adverts[sid].priority, sid) for sid in self._component)
        return LinkUpdate(floods, before != (self._latest_runs, self._root), routes_changed)

    def _latest_run(self, advert: LinkAdvert) -> str:
        """What has ended was master of something; two runs that go above each other are seen to start once."""
        known = self._latest_runs.get(advert.sid)
        return advert.origin if known is None or is_older(known, advert.origin) else known


def _edges(adverts: Mapping[str, LinkAdvert]) -> Edges:
    named = {sid: {near for near, _ in advert.neighbours if near != sid} for sid, advert in adverts.items()}
    mutual = {sid: tuple(sorted(near for near in nears if sid in named.get(near, ()))) for sid, nears in named.items()}
    return {sid: nears for sid, nears in mutual.items() if nears}


def _hops_to(edges: Edges, to: str) -> dict[str, int]:
    """Breadth first from `to`: every node that reaches it -> how many hops."""
    hops = {to: 0}
    queue = deque([to])
    while queue:
        node = queue.popleft()
        for near in edges.get(node, ()):
            if near not in hops:
                hops[near] = hops[node] + 1
                queue.append(near)
    return hops
