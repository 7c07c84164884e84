"""Tests of the search for a smaller plan, of overrides, and of the kind of a failure."""

import re
from math import inf

import pytest

from replicator.replication.writes.durability import Durability
from tests.simulation.campaign.faults import KINDS
from tests.simulation.campaign.overrides import overrides, with_overrides
from tests.simulation.campaign.shrinking import TRIES, kind_of, shrink
from tests.simulation.campaign.swarm import plan_of
from tests.simulation.plan import Plan, draw
from tests.simulation.soak import attempt

PLAN = Plan(size=7, clients=6, readers=2, users=("alice", "bob"), chaos_s=12.0)


def needs(size: int = 2, clients: int = 1, chaos_s: float = 0.0, faults: frozenset[int] = frozenset()):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Return a predicate that fails plans with at least these values, and the list of the plans tried."""
    tried: list[Plan] = []

    def fails(plan: Plan) -> int | None:
        tried.append(plan)
        assert plan.faults is not None
        is_enough = plan.size >= size and plan.clients >= clients and plan.chaos_s >= chaos_s and faults <= plan.faults
        return round(plan.chaos_s) if is_enough else None

    return fails, tried


def test_shrinking_removes_all_that_the_failure_does_not_need() -> None:
    fails, tried = needs(size=3, clients=2, chaos_s=5.0, faults=frozenset({4}))
    smallest = shrink(PLAN, 12, fails)
    assert overrides(PLAN, smallest) == "size=3,clients=2,readers=0,users=1,chaos_s=6.0,faults=4"
    assert len(tried) <= TRIES


def test_shrinking_finds_the_two_necessary_faults_of_many() -> None:
    fails, _ = needs(chaos_s=12.0, faults=frozenset({1, 10}))
    assert shrink(PLAN, 12, fails, tries=100).faults == frozenset({1, 10})


def test_irreducible_plan_stays_and_no_plan_is_tried_twice() -> None:
    fails, tried = needs(size=7, clients=6, chaos_s=12.0, faults=frozenset(range(12)))
    smallest = shrink(PLAN, 12, fails, tries=1000)
    assert overrides(PLAN, smallest) == "readers=0,users=1,faults=0+1+2+3+4+5+6+7+8+9+10+11"
    assert len({repr(plan) for plan in tried}) == len(tried)


@pytest.mark.parametrize("tries", [0, 1, 7])
def test_shrinking_ends_after_the_given_number_of_tries(tries: int) -> None:
    fails, tried = needs()
    shrink(PLAN, 12, fails, tries)
    assert len(tried) <= tries


def test_shrinking_tries_the_same_plans_each_time() -> None:
    found = []
    for _ in range(2):
        fails, tried = needs(size=4, faults=frozenset({2, 3}))
        shrink(PLAN, 12, fails)
        found.append(tried)
    assert found[0] == found[1]


def test_overrides_turn_the_drawn_plan_into_the_smaller_one() -> None:
    drawn = draw(8, tuple(KINDS))
    fails, _ = needs(clients=2, faults=frozenset({3}))
    smallest = shrink(drawn, 9, fails)
    assert with_overrides(drawn, overrides(drawn, smallest)) == smallest
    assert with_overrides(drawn, "") == drawn
    assert with_overrides(drawn, "faults=").faults == frozenset()


@pytest.mark.parametrize("wrong", ["clients", "nodes=2", "size=one", "size=1", "clients=-1", "faults=1+x"])
def test_wrong_overrides_are_named_in_the_error(wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong.replace("+", r"\+")):
        with_overrides(PLAN, wrong)


def test_kind_of_a_failure_ignores_names_and_numbers() -> None:
    one = AssertionError("180 s after all was healed: 1 entries wait at dc1: [Dot(origin='dc4.18b', seq=1)]")
    same = AssertionError("180 s after all was healed: 12 entries wait at dc3: [Dot(origin='dc1.1', seq=2), Dot()]")
    other = AssertionError("180 s after all was healed: dc2 shows something else than dc1")
    assert kind_of(one) == kind_of(ExceptionGroup("some", [ExceptionGroup("nested", [same]), other]))
    assert kind_of(one) != kind_of(other)
    assert kind_of(ValueError("wrong")) != kind_of(AssertionError("wrong"))


def test_soak_finds_a_mistake_and_repeats_it_by_a_smaller_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Durability, "_durable", lambda _self, _origin: inf)  # OK, whichever nodes have it
    plans = {seed: plan_of(seed) for seed in range(20)}
    seed = next(seed for seed, plan in plans.items() if plan.durability.copies > 1 and plan.deception is None)
    found = attempt(seed, tries=10)
    assert found.has_failed
    again = re.search(r"--seed (\d+) --with (\S+)$", found.story)
    assert again is not None
    assert int(again[1]) == seed
    drawn, smaller = plan_of(seed), plan_of(seed, again[2])
    assert (smaller.size, smaller.clients) < (drawn.size, drawn.clients)
    told = attempt(seed, again[2])
    assert told.has_failed
    for story in (found.story, told.story):
        assert re.search(r"AssertionError: at dc\d: OK for .+, which is on .+ copies were asked for", story)
    trace = re.compile(r"^trace \w+$", re.MULTILINE)
    assert trace.findall(found.story) == trace.findall(told.story)
