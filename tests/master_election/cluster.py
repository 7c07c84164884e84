"""Election machines of several nodes, joined in memory.

Each direction of a link is a queue that keeps its order; between links any order may be chosen, a cut link loses
what is under way, and a script may lose single messages. `trace` tells what happened, a line each.
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
from master_election.links import LinkTable, LinkUpdate
from master_election.masters import Masters
from protocol.commands import Dropped, Links, Master, Refused, Root, Who
from protocol.values import Dot

Body = Links | Root | Dropped | Who | Master | Refused


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
            case Who(scope, candidate):
                return f"WHO {scope} {candidate}"
            case Master(sid):
                return f"MASTER {sid}"
            case Refused():
                return "REFUSED"


@dataclass(frozen=True)
class Question:
    scope: str
    term: int


@dataclass(frozen=True)
class Relayed:
    sender: str
    tag: int


@dataclass
class Node:
    sid: str
    links: LinkTable
    election: Election
    masters: Masters
    requests: dict[int, Question | Relayed] = field(default_factory=dict)
    unflushed: list[int] | None = None  # terms whose StopMastering waits for `flush`; None: done at once


class Cluster:
    def __init__(self, priorities: dict[str, int] | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.wires: dict[tuple[str, str], deque[Message]] = {}
        self.trace: list[str] = []
        self.priorities = priorities or {}
        self.starts = 0
        self.tags = count(1)  # unique in the cluster: a reply that crosses a restart or another link finds nobody

    # ---- what befalls it

    def start(self, sid: str) -> None:
        self.starts += 1
        links = LinkTable(sid, self.starts * 1000)
        self.nodes[sid] = Node(sid, links, Election(links, self.priorities), Masters(sid))

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
            self._perform(sid, self.nodes[sid].election.tick())

    def hold(self, sid: str) -> None:
        self.nodes[sid].unflushed = []

    def flush(self, sid: str) -> None:
        node = self.nodes[sid]
        terms, node.unflushed = node.unflushed or [], None
        for term in terms:
            self._perform(sid, node.election.masters_dropped(term, (Dot(f"{sid}.1", term),)))

    def ask(self, sid: str, scope: str) -> None:
        """Unless it is known here."""
        node = self.nodes[sid]
        if node.masters.master(scope) is None:
            request = next(self.tags)
            node.requests[request] = Question(scope, node.masters.term)
            self._perform(sid, node.election.receive_who(scope, sid, request))

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
            case Who(scope, candidate):
                request = next(self.tags)
                node.requests[request] = Relayed(sender, message.tag)
                self._perform(here, node.election.receive_who(scope, candidate, request))
            case Master(sid):
                self._conclude(here, message.tag, sid)
            case Refused():
                self._conclude(here, message.tag, None)

    # ---- convenience

    @property
    def busy(self) -> list[tuple[str, str]]:
        return sorted(wire for wire, queue in self.wires.items() if queue)

    def settle(self) -> None:
        """Deliver until all is quiet, the links in turn."""
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

    # ---- the adapter that a real node has in trio

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
                case ForwardWho(request, to, scope, candidate):
                    self._send(here, to, Message(Who(scope, candidate), request))
                case RefuseWho(request):
                    self._conclude(here, request, None)

    def _stop_mastering(self, node: Node, term: int) -> None:
        self._say(f"{node.sid}: stops mastering, term {term}")
        node.masters.begin(term)
        if node.unflushed is not None:
            node.unflushed.append(term)
            return
        self._perform(node.sid, node.election.masters_dropped(term, (Dot(f"{node.sid}.1", term),)))

    def _conclude(self, here: str, request: int, master: str | None) -> None:
        node = self.nodes[here]
        match node.requests.pop(request, None):
            case Relayed(sender, tag):
                body = Master(master) if master is not None else Refused("UNAVAILABLE", "a new term began")
                self._send(here, sender, Message(body, tag))
            case Question(scope, term):
                if master is None:
                    self._say(f"{here}: has no answer about {scope}")
                elif node.masters.learn(scope, master, term):
                    self._say(f"{here}: master of {scope} is {master}")
                else:
                    self._say(f"{here}: answer {master} about {scope} comes too late")

    def _send(self, here: str, to: str, message: Message) -> None:
        if (here, to) in self.wires:
            self.wires[here, to].append(message)

    def _say(self, line: str) -> None:
        self.trace.append(line)
