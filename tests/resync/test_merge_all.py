"""Merge many states: two as `merge` does, and any number with the promises of design section 3."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot, UidSet, covers
from resync.entry import FlagAdd, MailDel
from resync.merge import merge, merge_all
from resync.row import Placement
from resync.state import MailboxState, joined
from tests.effort import examples
from tests.resync.histories import Node, World, mail


def states_of(seed: int, steps: int) -> list[MailboxState]:
    """Return the states of the nodes of a random cluster, in any order."""
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(steps):
        if rng.random() < 0.7:
            rng.choice(world.nodes).act(rng)
        else:
            one, other = rng.sample(world.nodes, 2)
            one.meet(other)
    states = [node.state for node in world.nodes]
    rng.shuffle(states)
    return states


CLUSTER = (st.integers(0, 2**32), st.integers(0, 60))


@given(*CLUSTER)
@settings(max_examples=examples(50, 100), deadline=None)
def test_two_states_are_merged_unless_one_covers_the_other(seed: int, steps: int) -> None:
    one, other = states_of(seed, steps)[:2]
    both = merge_all([one, other])
    if covers(one.context, other.context):
        assert both == one
    elif covers(other.context, one.context):
        assert both == other
    else:
        merged = merge(one, other, Dot("", 1))
        merged.context[""] = 1
        assert both == merged


@given(*CLUSTER)
@settings(max_examples=examples(50, 100), deadline=None)
def test_every_state_can_step_to_the_merged_state(seed: int, steps: int) -> None:
    states = states_of(seed, steps)
    after = merge_all(states)
    for before in states:
        assert_can_step(before, after)
    left: dict[bytes, set[Placement]] = {}
    for row in (row for state in states for row in state.rows.values()):
        standing = {one for one in row.placements() if not is_expunged(one, states)}
        left.setdefault(row.guid, set()).update(standing)
    kept = {row.guid: set(row.placements()) for row in after.rows.values()}
    assert kept == {guid: standing for guid, standing in left.items() if standing}, (
        "a merge keeps exactly the placements that no state has seen expunged"
    )


def assert_can_step(before: MailboxState, after: MailboxState) -> None:
    assert after.uidnext >= before.uidnext
    assert after.risen >= before.risen
    assert covers(after.context, before.context)
    old = {row.guid: row for row in before.rows.values()}
    for uid, row in after.rows.items():
        was = old.get(row.guid)
        seen = all(before.has_seen(dot) for dot, _ in row.placements())
        assert was is not None or not seen, "an expunged message came back"
        if was is None or was.uid != uid:
            assert uid >= before.uidnext, "a message appeared below a UIDNEXT that was shown"
        if was is None or was.uid != uid or was.visible_flags() != row.visible_flags():
            assert row.modseq > before.modseq, "a change appeared at a MODSEQ that was shown"
        assert uid == row.uid < after.uidnext


def placements(guid: bytes, states: Sequence[MailboxState]) -> set[Placement]:
    rows = (state.message(guid) for state in states)
    return {one for row in rows if row is not None for one in row.placements()}


def is_expunged(one: Placement, states: Sequence[MailboxState]) -> bool:
    """Return whether a state has seen the placement, and does not show it."""
    return any(
        state.has_seen(one[0]) and all(one not in row.placements() for row in state.rows.values()) for state in states
    )


@given(*CLUSTER)
@settings(max_examples=examples(50, 100), deadline=None)
def test_order_of_states_changes_only_numbers(seed: int, steps: int) -> None:
    """Flags of a GUID with two placements are exempt: they count only if they were set before the placements merged."""
    states = states_of(seed, steps)
    one, other = merge_all(states), merge_all(states[::-1])
    standing, again = ({row.guid: row.placements() for row in merged.rows.values()} for merged in (one, other))
    assert standing == again
    twice = {row.guid for state in states for row in state.rows.values() if len(placements(row.guid, states)) > 1}
    flags, others = (
        {row.guid: row.visible_flags() for row in merged.rows.values() if row.guid not in twice}
        for merged in (one, other)
    )
    assert flags == others
    assert one.context == other.context
    assert one.risen == other.risen


def test_placement_that_was_not_expunged_stays_in_any_order() -> None:
    """Two sides have the message, which was delivered twice; a third side has expunged one of its placements."""
    world = World(random.Random(0))
    one, other, third = (Node(name, world) for name in "abc")
    one.number(mail(1, b"x"))
    third.meet(one)
    third.number(MailDel(UidSet.of([1])))
    one.number(FlagAdd(UidSet.of([1]), ("a",)))
    other.number(mail(1, b"x"))
    for order in permutations([one.state, other.state, third.state]):
        assert [row.dot.origin for row in merge_all(order).rows.values()] == ["b.x"]


def test_covered_states_take_no_part() -> None:
    old = MailboxState(uidnext=2, modseq=1, context={"a.x": 1})
    new = MailboxState(uidnext=5, modseq=4, context={"a.x": 2})
    branch = MailboxState(uidnext=3, modseq=2, context={"a.x": 1, "b.x": 1})
    merged = merge_all([old, new, branch, new, MailboxState()])
    assert merged.context == {"a.x": 2, "b.x": 1, "": 1}
    assert (merged.uidnext, merged.modseq) == (5, 5)
    assert merge_all([old, MailboxState(), new]) == new


def test_context_counts_the_merged_states() -> None:
    branches = [MailboxState(modseq=1, context={f"{name}.x": 1}) for name in "abc"]
    expected: dict[str, int] = {"": 2}
    for branch in branches:
        expected = joined(expected, branch.context)
    assert merge_all(branches).context == expected


def test_merge_of_no_states_is_an_error() -> None:
    with pytest.raises(ValueError, match="no states"):
        merge_all([])
