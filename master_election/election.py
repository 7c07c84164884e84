"""Terms of the root, the node that knows the masters of its component (design section 5).

The root is a function of the component, so there is no vote. The nodes have to agree on the term, and on forgetting
everything from before it:

- On every change of its component a node stops mastering and raises its term by one. A new run of one of the
  component's nodes is such a change: the root may not have heard what the previous run had given away.
- The root floods ROOT with its term, at once and again on every tick, down the tree of shortest paths.
- A node answers every ROOT of its root with DROPPED, once it has dropped what it mastered. If the ROOT's term is higher
  than its own, it adopts that term and drops once more; if it is lower, the DROPPED carries the node's own term, and
  the root starts a new term above it.
- A term far above its own is believed only of a node that tells one again at a later heartbeat. The highest term
  counts, so one that was made up would otherwise be adopted for ever.
- A root answers WHO once it has DROPPED for its term from every node of its component. A node passes WHO on to the root
  once it has dropped and heard the ROOT of its term. Until then both hold it.

So only the root repeats messages. That alone heals lost messages, and messages that arrived before the change of
component that explains them. Within one term of one root a scope has one master: a request names the term in which it
is asked, and the root answers it only in that term, and only after all nodes have forgotten the previous term. A master
that hands a scope over tells the root, which then names the new master.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from master_election.assignments import Assignments
from master_election.links import LinkTable
from master_election.number_bounds import LEAP
from protocol.commands import Dropped, Master, Root, Who
from protocol.values import Dot

MAX_HELD = 4096
"""WHO requests held while a term settles, about 1 MiB: as many as clients of one node wait at once.

Further ones are refused.
"""


@dataclass(frozen=True, slots=True)
class StopMastering:
    """Forget cached masters, number nothing more, flush the numbered entries to disk; then call `masters_dropped`."""

    term: int


@dataclass(frozen=True, slots=True)
class SendRoot:
    """Send `root` to the neighbour `to`."""

    to: str
    root: Root


@dataclass(frozen=True, slots=True)
class SendDropped:
    """Send `dropped` to the neighbour `to`."""

    to: str
    dropped: Dropped


@dataclass(frozen=True, slots=True)
class AnswerWho:
    """The answer to the request `request_id`, which came by `receive_who`."""

    request_id: int
    master: Master


@dataclass(frozen=True, slots=True)
class ForwardWho:
    """Ask the neighbour `to`, and pass its answer on to the requester."""

    request_id: int
    to: str
    who: Who


@dataclass(frozen=True, slots=True)
class RefuseWho:
    """Refuse the request in this term: the requester should ask again in the new one."""

    request_id: int


Action = StopMastering | SendRoot | SendDropped | AnswerWho | ForwardWho | RefuseWho


class Election:
    """One node's part in the election. It starts alone, as its own root, in term 1.

    The election reads `links`, which must get each event first. Every method returns the actions to carry out, in
    order.
    """

    def __init__(self, links: LinkTable) -> None:
        self.sid = links.sid
        self.term = 1
        self.root = links.sid
        self._links = links
        self._dropped: dict[str, tuple[Dot, ...]] = {self.sid: ()}  # of this term; only our own if we are not the root
        self._heard = 0  # term of the last ROOT of this node's root, since its own term began
        self._assignments = Assignments(self.sid)  # used if this node is the root
        self._held: dict[int, Who] = {}  # by request id
        self._beats = 0
        self._doubted: dict[str, int] = {}  # SIDs that last told a term far above our own -> heartbeat of the first one

    # ---- queries

    @property
    def is_root(self) -> bool:
        """True if this node is the root of its component."""
        return self.root == self.sid

    @property
    def settled(self) -> bool:
        """True if WHO is now answered or passed on."""
        if self.is_root:
            return len(self._dropped) == len(self._links.component)
        return self.sid in self._dropped and self._heard == self.term

    @property
    def contexts(self) -> Mapping[str, tuple[Dot, ...]]:
        """The context that each node had when it dropped its masters in this term, as far as known here."""
        return self._dropped

    @property
    def masters(self) -> Mapping[str, str]:
        """Scope -> SID of its master, as the root assigned them in this term; empty on other nodes."""
        return self._assignments.masters

    # ---- events

    def component_changed(self) -> list[Action]:
        """Begin a new term because the link table reports a new component."""
        self.root = self._links.root
        return self._begin(self.term + 1)

    def tick(self) -> list[Action]:
        """Handle a heartbeat: the root repeats ROOT."""
        self._beats += 1
        return self._declare() if self.is_root else []

    def masters_dropped(self, term: int, context: tuple[Dot, ...]) -> list[Action]:
        """Report that `StopMastering(term)` is done; `context` is what this node has on its disk."""
        if term != self.term or self.sid in self._dropped:
            return []
        self._dropped[self.sid] = context
        return [*self._answer_root(), *self._release()]

    def receive_root(self, root: Root, sender: str) -> list[Action]:
        """Handle ROOT from the neighbour `sender`.

        Ignore a root that this node does not see as its own: ROOT is repeated.
        """
        if self.is_root or root.root != self.root:
            return []
        actions: list[Action] = []
        if sender == self._links.next_hop(self.root):
            actions += [SendRoot(to, root) for to in self._links.downstream(self.root) if to != sender]
        if not self._believes(root.term, root.root):
            return actions
        if root.term > self.term:
            actions += self._begin(root.term)
        self._heard = max(self._heard, root.term)
        return [*actions, *self._answer_root(), *self._release()]

    def receive_dropped(self, dropped: Dropped, sender: str) -> list[Action]:
        """Handle DROPPED from the neighbour `sender`: use it if this node is the root, else pass it on to the root."""
        if not self.is_root:
            to = self._links.next_hop(self.root)
            on_the_way = sender in self._links.downstream(self.root)
            return [SendDropped(to, dropped)] if to is not None and on_the_way else []
        if dropped.sid == self.sid or dropped.sid not in self._links.component:
            return []
        if not self._believes(dropped.term, dropped.sid):
            return []
        if dropped.term > self.term:
            return self._begin(dropped.term + 1)
        if dropped.term < self.term or dropped.sid in self._dropped:
            return []  # an answer to a repeated or outdated ROOT
        self._dropped[dropped.sid] = dropped.context
        return self._release()

    def receive_who(self, who: Who, request_id: int) -> list[Action]:
        """Handle WHO from a neighbour or from this node itself; `request_id` must not be in use."""
        if who.term != self.term or (not self.settled and len(self._held) >= MAX_HELD):
            return [RefuseWho(request_id)]
        if self.settled:
            return [self._decide(who, request_id)]
        self._held[request_id] = who
        return []

    def forget_who(self, request_id: int) -> None:
        """Drop a held request because its requester no longer waits."""
        self._held.pop(request_id, None)

    # ---- terms

    def _believes(self, term: int, sid: str) -> bool:
        """Return True for a term that is not far above this node's, or if `sid` has told such a term before.

        Then it has done so at an earlier heartbeat, and told no near one since: a node in a far term says so each time.
        """
        if term <= self.term + LEAP:
            self._doubted.pop(sid, None)
            return True
        return self._doubted.setdefault(sid, self._beats) < self._beats

    def _begin(self, term: int) -> list[Action]:
        refused = [RefuseWho(request_id) for request_id in self._held]
        self.term = term
        self._dropped, self._held = {}, {}
        self._assignments = Assignments(self.sid)
        self._heard = 0
        self._doubted = {}
        return [*refused, *(self._declare() if self.is_root else []), StopMastering(term)]

    def _declare(self) -> list[Action]:
        return [SendRoot(to, Root(self.term, self.sid)) for to in self._links.downstream(self.sid)]

    def _answer_root(self) -> list[Action]:
        to = self._links.next_hop(self.root)
        if to is None or not self._heard or self.sid not in self._dropped:
            return []
        return [SendDropped(to, Dropped(self.term, self.sid, self._dropped[self.sid]))]

    def _release(self) -> list[Action]:
        if not self.settled:
            return []
        held, self._held = self._held, {}
        return [self._decide(who, request_id) for request_id, who in held.items()]

    def _decide(self, who: Who, request_id: int) -> Action:
        if not self.is_root:
            to = self._links.next_hop(self.root)
            return RefuseWho(request_id) if to is None else ForwardWho(request_id, to, who)
        if who.candidate not in self._links.component:
            return RefuseWho(request_id)
        if who.former is not None:
            self._assignments.hand_over(who.scope, who.former, who.candidate)
        return AnswerWho(request_id, self._assignments.master(who.scope, who.candidate))
