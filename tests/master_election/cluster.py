"""Election machines of several nodes, linked in memory.

Each direction of a link is a queue that keeps its order. Between links a test chooses the order, a cut link loses the
messages on it, and a script may lose single messages. `trace` has a line for each event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from master_election.election import (
    Action,
    AnswerWho,
    Election,
    ForwardWho,
    RefuseWho,
    SendDropped,
    SendRoot,
    StopMastering,
)
from master_election.known_masters import KnownMasters
from master_election.links import LinkTable, LinkUpdate
from protocol.commands import Dropped, Links, Master, Moved, Refused, Root, Who
from protocol.values import Dot


@dataclass(frozen=True)
class Move:
    """A MASTER-MOVE, with the scope in the place of the mailbox's number."""

    scope: str
    term: int
    destination: str


Body = Links | Root | Dropped | Who | Move | Master | Moved | Refused


@dataclass(frozen=True)
class Message:
    body: Body
    tag: int = 0  # of a request, and of the reply to it

    def __str__(self) -> str:
        match self.body:
            case Links(adverts):
                return f"LINKS {' '.join(sorted(advert.sid for advert in adverts))}"
            case Root(term, root):
                return f"ROOT {term} {root}"
            case Dropped(term, sid, _):
                return f"DROPPED {term} {sid}"
            case Who(_, scope, candidate, former):
                return f"WHO {scope} {candidate}" + (f" FROM {former}" if former else "")
            case Move(scope, _, destination):
                return f"MASTER-MOVE {scope} {destination}"
            case Master(sid, covering):
                return f"MASTER {sid}" + (f" OF {covering}" if covering else "")
            case Moved(scope, _):
                return f"MOVED {scope}"
            case Refused():
                return "REFUSED"


@dataclass(frozen=True)
class Question:
    scope: str
    term: int
    moves: int


@dataclass(frozen=True)
class Taking:
    scope: str
    term: int


@dataclass(frozen=True)
class Telling:
    """A report of a move to the root, repeated until the root answers."""

    who: Who


@dataclass(frozen=True)
class Relayed:
    sender: str
    tag: int
    body: Who | Move


@dataclass
class Node:
    sid: str
    links: LinkTable
    election: Election
    masters: KnownMasters
    requests: dict[int, Question | Taking | Telling | Relayed] = field(default_factory=dict)
    unflushed: list[int] | None = None  # terms whose StopMastering waits for `flush`; None: nothing waits
    giving: list[tuple[Relayed, str]] = field(default_factory=list)  # requests, each with the part that was promised
    busy: bool = False  # its clients use the wider scope
    deferred: list[Relayed] = field(default_factory=list)  # requests that wait for the end of another move


class Cluster:
    def __init__(self, priorities: dict[str, int] | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.wires: dict[tuple[str, str], deque[Message]] = {}
        self.trace: list[str] = []
        self.priorities = priorities or {}
        self.starts = 0
        self.tags = count(1)  # unique in the cluster, so that a late reply reaches no other request

    # ---- events

    def start(self, sid: str) -> None:
        self.starts += 1
        links = LinkTable(f"{sid}.{self.starts:x}", lambda: self.starts * 1000, self.priorities.get(sid, 100))
        self.nodes[sid] = Node(sid, links, Election(links), KnownMasters(sid))

    def stop(self, sid: str) -> None:
        links = self.nodes.pop(sid).links
        for near in links.neighbours:
            self.cut(sid, near)

    def link(self, a: str, b: str) -> None:
        self.wires[a, b], self.wires[b, a] = deque(), deque()
        for here, there in ((a, b), (b, a)):
            self._follow(here, self.nodes[here].links.neighbour_up(there, 100))

    def cut(self, a: str, b: str) -> None:
        del self.wires[a, b], self.wires[b, a]
        for here, there in ((a, b), (b, a)):
            if here in self.nodes:
                self._follow(here, self.nodes[here].links.neighbour_down(there))

    def tick(self, sids: Iterable[str]) -> None:
        for sid in sids:
            node = self.nodes[sid]
            self._perform(sid, node.election.tick())
            for request, telling in [*node.requests.items()]:
                if isinstance(telling, Telling):
                    del node.requests[request]
                    self._tell(node, telling.who)

    def hold(self, sid: str) -> None:
        self.nodes[sid].unflushed = []

    def flush(self, sid: str) -> None:
        node = self.nodes[sid]
        terms, node.unflushed = node.unflushed or [], None
        for term in terms:
            self._perform(sid, node.election.masters_dropped(term, (Dot(f"{sid}.1", term),)))
        promised, node.giving = node.giving, []
        for relayed, part in promised:
            self._give(node, relayed, part)

    def ask(self, sid: str, scope: str) -> None:
        """Ask for the master of a scope, unless the node knows it."""
        node = self.nodes[sid]
        if node.masters.master(scope) is None:
            request = next(self.tags)
            node.requests[request] = Question(scope, node.masters.term, node.masters.moves(scope))
            self._perform(sid, node.election.receive_who(Who(node.masters.term, scope, sid), request))

    def move(self, sid: str, scope: str) -> None:
        """Let the node ask the master for the scope, if it knows another node as the master."""
        node = self.nodes[sid]
        master = node.masters.want(scope)
        if master is not None:
            request = next(self.tags)
            node.requests[request] = Taking(scope, node.masters.term)
            self._send(sid, node.links.next_hop(master), Message(Move(scope, node.masters.term, sid), request))

    def change(self, sid: str, scope: str) -> None:
        """Send a client's change to the master, by what each node knows, and trace its way."""
        at, came_from = sid, ""
        path = [sid]
        while (master := self.nodes[at].masters.master(scope)) != at:
            to = None if master is None else self.nodes[at].links.next_hop(master)
            if self.nodes[at].masters.is_moving(scope):
                return self._say(f"{' > '.join(path)}  a change of {scope} waits")
            if to is None or to == came_from or at in path[:-1]:
                for each in path:  # the refusal goes back the same way
                    self.nodes[each].masters.bounced(scope)
                return self._say(f"{' > '.join(path)}  a change of {scope} goes back: NOT-MASTER")
            at, came_from = to, at
            path.append(at)
        return self._say(f"{' > '.join(path)}  a change of {scope} is numbered")

    def join(self, sid: str) -> None:
        """Let the parts that were split off to this node join the wider scope again."""
        node = self.nodes[sid]
        for part in node.masters.own_parts:
            if node.masters.promise(part, part):
                self._tell(node, Who(node.masters.term, part, sid, former=sid))

    def give_up(self) -> None:
        """Let all nodes give up waiting for answers to MASTER-MOVE."""
        for node in self.nodes.values():
            for request, taking in [*node.requests.items()]:
                if isinstance(taking, Taking):
                    del node.requests[request]
                    node.masters.not_taken(taking.scope, taking.term, refused=False)
                    self._again(node)

    def lose(self, wire: tuple[str, str]) -> None:
        self._say(f"{wire[0]} > {wire[1]}  {self.wires[wire].popleft()}  is lost")

    def deliver(self, wire: tuple[str, str]) -> None:
        sender, here = wire
        message = self.wires[wire].popleft()
        self._say(f"{sender} > {here}  {message}")
        node = self.nodes[here]
        match message.body:
            case Links(adverts):
                self._follow(here, node.links.receive(adverts, sender))
            case Root() as root:
                self._perform(here, node.election.receive_root(root, sender))
            case Dropped() as dropped:
                self._perform(here, node.election.receive_dropped(dropped, sender))
            case Who() as who:
                request = next(self.tags)
                node.requests[request] = Relayed(sender, message.tag, who)
                self._perform(here, node.election.receive_who(who, request))
            case Move() as move:
                self._move(node, Relayed(sender, message.tag, move))
            case Master() | Moved() | Refused() as reply:
                self._conclude(here, message.tag, reply)

    # ---- convenience

    @property
    def busy(self) -> list[tuple[str, str]]:
        return sorted(wire for wire, queue in self.wires.items() if queue)

    def settle(self) -> None:
        """Deliver all messages, from each link in turn, until none is left."""
        while busy := self.busy:
            for wire in busy:
                if self.wires.get(wire):
                    self.deliver(wire)

    def describe(self) -> list[str]:
        lines = []
        for sid, node in sorted(self.nodes.items()):
            election = node.election
            state = "settled" if election.settled else "waits"
            component = " ".join(node.links.component)
            lines.append(f"{sid}: component {component}, root {election.root}, term {election.term}, {state}")
        return lines

    # ---- the adapter, which a real node has in trio

    def _follow(self, here: str, update: LinkUpdate) -> None:
        for flood in update.floods:
            self._send(here, flood.to, Message(Links(flood.adverts)))
        if update.component_changed:
            node = self.nodes[here]
            self._say(f"{here}: component is now {' '.join(node.links.component)}")
            self._perform(here, node.election.component_changed())

    def _perform(self, here: str, actions: list[Action]) -> None:
        node = self.nodes[here]
        for action in actions:
            match action:
                case StopMastering(term):
                    self._stop_mastering(node, term)
                case SendRoot(to, root):
                    self._send(here, to, Message(root))
                case SendDropped(to, dropped):
                    self._send(here, to, Message(dropped))
                case AnswerWho(request, master):
                    self._conclude(here, request, master)
                case ForwardWho(request, to, who):
                    self._send(here, to, Message(who, request))
                case RefuseWho(request):
                    self._conclude(here, request, Refused("UNAVAILABLE", ""))

    def _stop_mastering(self, node: Node, term: int) -> None:
        self._say(f"{node.sid}: stops mastering, term {term}")
        node.masters.begin(term)
        self._again(node)
        if node.unflushed is not None:
            node.unflushed.append(term)
            return
        self._perform(node.sid, node.election.masters_dropped(term, (Dot(f"{node.sid}.1", term),)))

    def _conclude(self, here: str, request: int, reply: Master | Moved | Refused) -> None:
        node = self.nodes[here]
        match node.requests.pop(request, None):
            case Relayed(sender, tag, body):
                if isinstance(body, Move) and isinstance(reply, Moved):
                    node.masters.learn(body.scope, body.destination, body.term, reply.scope)
                self._send(here, sender, Message(reply, tag))
            case Question() as question:
                self._answered(node, question, reply)
            case Taking(scope, term):
                self._taken(node, scope, term, reply)
            case Telling(who) if isinstance(reply, Master) and who.candidate == who.former:
                if reply.covering is None or not node.masters.join(who.scope, reply.sid, who.term):
                    node.masters.keep(who.scope, who.term)
                self._again(node)
            case Telling(who) if isinstance(reply, Master) and reply.sid == who.candidate:
                node.masters.told(who.scope, who.term)
            case Telling(who):
                self._tell(node, who, at_once=False)

    def _answered(self, node: Node, question: Question, reply: Master | Moved | Refused) -> None:
        scope = question.scope
        if not isinstance(reply, Master):
            self._say(f"{node.sid}: has no answer about {scope}")
        elif node.masters.learn(scope, reply.sid, question.term, reply.covering, question.moves):
            self._say(f"{node.sid}: master of {scope} is {reply.sid}")
        else:
            self._say(f"{node.sid}: answer {reply.sid} about {scope} comes too late")
            self.ask(node.sid, scope)

    def _taken(self, node: Node, scope: str, term: int, reply: Master | Moved | Refused) -> None:
        if isinstance(reply, Moved) and node.masters.taken(scope, reply.scope, term):
            self._say(f"{node.sid}: is now master of {reply.scope}")
        else:
            node.masters.not_taken(scope, term, refused=isinstance(reply, Refused))
            self._say(f"{node.sid}: did not get {scope}")
        self._again(node)

    # ---- moves

    def _move(self, node: Node, relayed: Relayed) -> None:
        move = relayed.body
        assert isinstance(move, Move)
        master = node.masters.master(move.scope)
        if node.masters.is_moving(move.scope) and move.term == node.masters.term:
            node.deferred.append(relayed)
        elif move.term != node.masters.term or master is None:
            self._send(node.sid, relayed.sender, Message(Refused("UNAVAILABLE", ""), relayed.tag))
        elif master == node.sid:
            covering = node.masters.covering(move.scope)
            self._promise(node, relayed, move.scope if node.busy or covering is None else covering)
        else:
            request = next(self.tags)
            node.requests[request] = relayed
            self._send(node.sid, node.links.next_hop(master), Message(move, request))

    def _promise(self, node: Node, relayed: Relayed, part: str) -> None:
        assert isinstance(relayed.body, Move)
        if not node.masters.promise(relayed.body.scope, part):
            return
        if node.unflushed is None:
            self._give(node, relayed, part)
        else:
            node.giving.append((relayed, part))

    def _give(self, node: Node, relayed: Relayed, part: str) -> None:
        move = relayed.body
        assert isinstance(move, Move)
        if not node.masters.give(part, move.destination, move.term):
            self._send(node.sid, relayed.sender, Message(Refused("UNAVAILABLE", ""), relayed.tag))
            return
        self._say(f"{node.sid}: hands {part} over to {move.destination}")
        self._send(node.sid, relayed.sender, Message(Moved(part, None), relayed.tag))
        self._tell(node, Who(move.term, part, move.destination, former=node.sid))
        self._again(node)

    def _tell(self, node: Node, who: Who, *, at_once: bool = True) -> None:
        if who.term != node.masters.term:
            return
        request = next(self.tags)
        node.requests[request] = Telling(who)
        if at_once:
            self._perform(node.sid, node.election.receive_who(who, request))

    def _again(self, node: Node) -> None:
        deferred, node.deferred = node.deferred, []
        for relayed in deferred:
            self._move(node, relayed)

    def _send(self, here: str, to: str | None, message: Message) -> None:
        if to is not None and (here, to) in self.wires:
            self.wires[here, to].append(message)

    def _say(self, line: str) -> None:
        self.trace.append(line)
