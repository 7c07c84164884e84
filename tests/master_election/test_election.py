from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from master_election import assignments, election
from master_election.election import AnswerWho, Election, RefuseWho
from master_election.links import LinkTable
from master_election.number_bounds import LEAP
from master_election.scope_record import Standing
from protocol.commands import Dropped, LinkAdvert, Master, Root, Who
from tests.effort import examples
from tests.master_election.cluster import Cluster

SIDS = "abcde"
PAIRS = list(combinations(SIDS, 2))
SCOPES = ("inbox", "sent", "mailbox:01 of user:ann", "mailbox:02 of user:ann")


def single_node(sid: str = "a") -> Election:
    return Election(LinkTable(sid, lambda: 1, 100))


def pair() -> Cluster:
    cluster = Cluster()
    cluster.start("a")
    cluster.start("b")
    cluster.link("a", "b")
    cluster.settle()
    return cluster


def test_single_node_appoints_itself_at_once() -> None:
    machine = single_node()
    assert machine.receive_who(Who(machine.term, "inbox", "a"), 1) == [AnswerWho(1, Master("a"))]
    assert machine.tick() == []


def test_unreachable_candidate_is_not_appointed() -> None:
    assert single_node().receive_who(Who(1, "inbox", "z"), 1) == [RefuseWho(1)]


def test_root_masters_scopes_above_the_limit_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "MAX_SCOPES", 1)
    machine = pair().nodes["a"].election
    assert machine.receive_who(Who(machine.term, "inbox", "b"), 1) == [AnswerWho(1, Master("b"))]
    assert machine.receive_who(Who(machine.term, "sent", "b"), 2) == [AnswerWho(2, Master("a"))]
    assert machine.receive_who(Who(machine.term, "inbox", "a"), 3) == [AnswerWho(3, Master("b"))]


def who(scope: str, candidate: str, former: str | None = None) -> Who:
    return Who(1, scope, candidate, former)


def root_of(*sids: str) -> Election:
    """Make the election machine of the first of these nodes, which is the root, in term 1."""
    links = LinkTable(sids[0], lambda: 1, 100)
    for sid in sids[1:]:
        links.neighbour_up(sid, 1)
        links.receive([LinkAdvert(sid, 100, 1, ((sids[0], 1),))], sid)
    machine = Election(links)
    for sid in sids[1:]:
        machine.receive_dropped(Dropped(1, sid, ()), sid)
    return machine


def test_root_is_told_of_moves() -> None:
    machine = root_of("a", "b", "c")
    machine.receive_who(who("inbox", "b"), 1)
    assert machine.receive_who(who("inbox", "c", former="b"), 2) == [AnswerWho(2, Master("c"))]
    assert machine.receive_who(who("inbox", "b", former="b"), 3) == [AnswerWho(3, Master("c"))], (
        "b is not the master any more"
    )
    assert machine.receive_who(who("inbox", "a"), 4) == [AnswerWho(4, Master("c"))]
    assert machine.masters == {"inbox": "c"}


def test_part_has_the_master_of_the_wider_scope_until_split_off() -> None:
    machine = root_of("a", "b", "c")
    part, other = "mailbox:01 of user:ann", "mailbox:02 of user:ann"
    of_user = Master("b", "user:ann")
    assert machine.receive_who(who(part, "b"), 1) == [AnswerWho(1, of_user)]
    assert machine.receive_who(who(other, "c"), 2) == [AnswerWho(2, of_user)]
    assert machine.receive_who(who(part, "c", former="b"), 3) == [AnswerWho(3, Master("c"))]
    assert machine.receive_who(who(other, "a"), 4) == [AnswerWho(4, of_user)]
    assert machine.receive_who(who(part, "b", former="c"), 5) == [AnswerWho(5, Master("b"))]
    assert machine.receive_who(who(part, "b", former="b"), 6) == [AnswerWho(6, of_user)], (
        "the part has joined the wider scope again"
    )
    assert machine.masters == {"user:ann": "b"}


def test_question_of_another_term_is_refused() -> None:
    machine = root_of("a", "b")
    assert machine.receive_who(Who(2, "inbox", "b"), 1) == [RefuseWho(1)]
    assert machine.receive_who(Who(0, "inbox", "b"), 2) == [RefuseWho(2)]
    assert machine.masters == {}


def test_number_of_held_questions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "MAX_HELD", 2)
    machine = pair().nodes["a"].election
    machine.receive_dropped(Dropped(7, "b", ()), "b")
    assert machine.term == 8
    who = Who(machine.term, "inbox", "a")
    assert [machine.receive_who(who, request) for request in (1, 2, 3)] == [[], [], [RefuseWho(3)]]
    machine.forget_who(1)
    assert machine.receive_who(Who(machine.term, "inbox", "a"), 4) == []


def test_root_of_another_node_is_ignored() -> None:
    machine = pair().nodes["b"].election
    assert machine.receive_root(Root(9, "z"), "a") == []
    assert machine.term == 2


def test_root_ignores_dropped_from_outside_its_component() -> None:
    machine = pair().nodes["a"].election
    assert machine.receive_dropped(Dropped(9, "z", ()), "b") == []
    assert machine.term == 2
    assert machine.settled


FAR = (1 << 31) + 721  # above every term of a cluster that has run for years


def test_far_term_that_a_root_tells_once_is_not_adopted() -> None:
    machine = pair().nodes["b"].election
    for _ in range(3):
        assert machine.receive_root(Root(FAR, "a"), "a") == []
        assert machine.receive_root(Root(FAR + 1, "a"), "a") == [], "the same heartbeat"
        machine.tick()
        machine.receive_root(Root(2, "a"), "a")
        assert (machine.term, machine.settled) == (2, True)


def test_far_term_that_a_node_tells_once_begins_no_other() -> None:
    machine = pair().nodes["a"].election
    for _ in range(3):
        assert machine.receive_dropped(Dropped(FAR, "b", ()), "b") == []
        machine.tick()
        machine.receive_dropped(Dropped(2, "b", ()), "b")
        assert (machine.term, machine.settled) == (2, True)


def test_far_terms_of_two_nodes_confirm_nothing() -> None:
    machine = root_of("a", "b", "c")
    assert machine.receive_dropped(Dropped(FAR, "b", ()), "b") == []
    machine.tick()
    assert machine.receive_dropped(Dropped(FAR, "c", ()), "c") == []
    assert machine.term == 1


def test_near_term_is_adopted_at_once() -> None:
    machine = pair().nodes["b"].election
    machine.receive_root(Root(2 + LEAP, "a"), "a")
    assert machine.term == 2 + LEAP


@pytest.mark.parametrize("far", SIDS[:3])
def test_nodes_in_far_terms_agree_after_some_heartbeats(far: str) -> None:
    """Two of the nodes have been apart from the third for very many terms; none of them lies."""
    cluster = Cluster()
    for sid in SIDS[:3]:
        cluster.start(sid)
    cluster.nodes[far].election.term = FAR
    for one, other in (("a", "b"), ("b", "c")):
        cluster.link(one, other)
    for _ in range(4):
        cluster.settle()
        cluster.tick(SIDS[:3])
    cluster.settle()
    assert all(node.election.settled for node in cluster.nodes.values())
    assert {node.election.term for node in cluster.nodes.values()} <= set(range(FAR, FAR + 9))


def test_root_learns_the_context_of_each_node() -> None:
    cluster = pair()
    contexts = cluster.nodes["a"].election.contexts
    assert {sid: context[0].origin for sid, context in contexts.items()} == {"a": "a.1", "b": "b.1"}
    assert cluster.nodes["a"].election.masters == {}


FEW_FAULTS = {
    "deliver": 80,
    "ask": 12,
    "move": 12,
    "change": 12,
    "busy": 3,
    "join": 3,
    "flip": 2,
    "tick": 1,
    "lose": 1,
    "hold": 0.3,
    "restart": 0.5,
}
MANY_FAULTS = {
    "deliver": 40,
    "ask": 6,
    "move": 6,
    "change": 6,
    "busy": 3,
    "join": 3,
    "flip": 6,
    "tick": 3,
    "lose": 3,
    "hold": 1,
    "restart": 1,
}


class Chaos:
    """Random events, drawn from one seed, and then rest."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.weights = random.choice((FEW_FAULTS, MANY_FAULTS))
        self.cluster = Cluster({sid: random.choice((0, 0, 1)) for sid in SIDS})
        self.edges: set[tuple[str, str]] = set()
        self.held: set[str] = set()
        for sid in SIDS:
            self.cluster.start(sid)

    def step(self) -> None:
        kind = self.random.choices(tuple(self.weights), tuple(self.weights.values()))[0]
        sid = self.random.choice(SIDS)
        match kind:
            case "deliver":
                if self.cluster.busy:
                    self.cluster.deliver(self.random.choice(self.cluster.busy))
            case "flip":
                self.flip(self.random.choice(PAIRS))
            case "ask":
                self.cluster.ask(sid, self.random.choice(SCOPES))
            case "move":
                self.cluster.move(sid, self.random.choice(SCOPES))
            case "change":
                self.cluster.change(sid, self.random.choice(SCOPES))
            case "busy":
                self.cluster.nodes[sid].busy ^= True
            case "join":
                self.cluster.join(sid)
            case "tick":
                self.cluster.tick([sid])
            case "lose":
                self.lose()
            case "hold":
                self.hold(sid)
            case "restart":
                self.edges = {edge for edge in self.edges if sid not in edge}
                self.held.discard(sid)
                self.cluster.stop(sid)
                self.cluster.priorities[sid] = self.random.choice((0, 0, 1))
                self.cluster.start(sid)

    def flip(self, pair: tuple[str, str]) -> None:
        (self.cluster.cut if pair in self.edges else self.cluster.link)(*pair)
        self.edges ^= {pair}

    def lose(self) -> None:
        """Lose a ROOT or DROPPED, as happens on a way over several links. LINKS are not lost on a link that is up."""
        for wire in self.cluster.busy:
            if isinstance(self.cluster.wires[wire][0].body, Root | Dropped):
                self.cluster.lose(wire)
                return

    def hold(self, sid: str) -> None:
        if sid in self.held:
            self.cluster.flush(sid)
        else:
            self.cluster.hold(sid)
        self.held ^= {sid}

    def rest(self) -> None:
        """Flush and deliver everything, and let heartbeats pass."""
        for sid in sorted(self.held):
            self.cluster.flush(sid)
        self.held.clear()
        for _ in range(3):
            self.cluster.settle()
            self.cluster.tick(SIDS)
        self.cluster.settle()
        self.cluster.give_up()
        self.cluster.settle()

    def check_roots(self) -> None:
        """Check that before a root answers, all nodes have told it that their old masters are dropped and on disk.

        Nodes that do not see each other are exempt: a node that has just restarted serves alone until it sees the root,
        and the root may have heard only of the node's past run.
        """
        for root in SIDS:
            node = self.cluster.nodes[root]
            if not node.election.is_root or not node.election.settled:
                continue
            for sid in node.links.component:
                member = self.cluster.nodes[sid]
                if root in member.links.component and node.links.origin_of(sid) == member.links.origin:
                    assert member.masters.term >= node.election.term or not member.masters.own
                    assert all(term > node.election.term for term in member.unflushed or ())

    def check_masters(self) -> None:
        """Check that no scope has two masters in one term of one component, even during a move."""
        numbering: dict[tuple[object, ...], str] = {}
        for sid, node in self.cluster.nodes.items():
            if node.masters.term != node.election.term:
                continue
            for scope in SCOPES:
                if node.masters.standing(scope) in (Standing.OURS, Standing.GIVING, Standing.SPLITTING):
                    place = (scope, node.election.term, node.election.root, node.links.component)
                    assert numbering.setdefault(place, sid) == sid, f"{scope} has two masters"

    def component(self, sid: str) -> tuple[str, ...]:
        found = {sid}
        while more := {end for edge in self.edges if found & set(edge) for end in edge} - found:
            found |= more
        return tuple(sorted(found))

    def check(self) -> None:
        for sid in SIDS:
            component = self.component(sid)
            machines = [self.cluster.nodes[near].election for near in component]
            assert self.cluster.nodes[sid].links.component == component
            assert {machine.root for machine in machines} == {
                min(component, key=lambda near: (self.cluster.priorities[near], near))
            }
            assert len({machine.term for machine in machines}) == 1
            assert all(machine.settled for machine in machines)
            for scope in SCOPES:
                owners = [near for near in component if self.cluster.nodes[near].masters.is_ours(scope)]
                assert len(owners) <= 1, f"two masters of {scope}: {owners}"
                known = {self.cluster.nodes[near].masters.master(scope) for near in component} - {None}
                assert known <= set(component)
                assert not any(self.cluster.nodes[near].masters.is_moving(scope) for near in component)

    def check_chains(self) -> None:
        """Check that a change at any node reaches the master, after asking again where a former master is known."""
        for sid in SIDS:
            for scope in SCOPES:
                for _ in range(2 * len(SIDS)):
                    self.cluster.trace.clear()
                    self.cluster.change(sid, scope)
                    if "is numbered" in self.cluster.trace[-1]:
                        break
                    for near in self.component(sid):
                        self.cluster.ask(near, scope)
                    self.cluster.settle()
                else:
                    pytest.fail(f"a change of {scope} at {sid} finds no master: {self.cluster.trace}")


@given(seed=st.integers(0, 2**64), steps=st.sampled_from((30, 100, 300)))
@settings(max_examples=examples(100, 200), deadline=None)
def test_component_agrees_on_root_term_and_masters_after_chaos(seed: int, steps: int) -> None:
    chaos = Chaos(Random(seed))
    for _ in range(steps):
        chaos.step()
        chaos.check_roots()
        chaos.check_masters()
    chaos.rest()
    chaos.check()
    terms = {sid: node.election.term for sid, node in chaos.cluster.nodes.items()}
    for sid in SIDS:
        for scope in SCOPES:
            chaos.cluster.ask(sid, scope)
    chaos.rest()
    chaos.check()
    assert all(node.masters.master(scope) for node in chaos.cluster.nodes.values() for scope in SCOPES)
    chaos.check_chains()
    assert terms == {sid: node.election.term for sid, node in chaos.cluster.nodes.items()}
