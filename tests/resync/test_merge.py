"""The merge against a reference implementation, and its promises over random histories of several nodes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UID_MAX, Dot, UidSet
from resync.entry import FlagAdd, MailAdd, MailDel
from resync.merge import GAP_MAX, Anew, merge
from resync.state import MERGE_HEADROOM, RISEN_MAX
from tests.effort import examples
from tests.resync.histories import HASH, Node, World, mail


@given(st.integers(0, 2**32), st.integers(10, 120))
@settings(max_examples=examples(75, 150), deadline=None)
def test_nodes_that_number_apart_keep_every_promise(seed: int, steps: int) -> None:
    World(random.Random(seed)).run(steps)


def test_uid_of_two_messages_stays_with_neither() -> None:
    world = World(random.Random(0))
    one, other = (Node(name, world) for name in "ab")
    one.number(MailAdd(1, b"x" * 16, 0, (), 1, HASH, copied=False))
    other.meet(one)
    one.number(MailAdd(2, b"y" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailAdd(2, b"z" * 16, 0, (), 1, HASH, copied=False))
    one.meet(other)
    assert {uid: row.guid[:1] for uid, row in one.state.rows.items()} == {1: b"x", 3: b"z", 4: b"y"}


def test_uid_of_a_message_expunged_on_the_other_side_is_not_used() -> None:
    world = World(random.Random(0))
    one, other = (Node(name, world) for name in "ab")
    one.number(MailAdd(1, b"y" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailAdd(1, b"z" * 16, 0, (), 1, HASH, copied=False))
    other.number(MailDel(UidSet.of([1])))
    one.meet(other)
    assert {uid: row.guid[:1] for uid, row in one.state.rows.items()} == {2: b"y"}


def mail_saved_twice() -> tuple[Node, Node, Node]:
    """Return three nodes: two have numbered one message apart, and the third has the first node's entry."""
    world = World(random.Random(0))
    first, again, third = (Node(name, world) for name in "abc")
    world.time = 10
    first.number(mail(1, b"x"))
    third.meet(first)
    world.time = 5
    again.number(mail(1, b"x"))
    return first, again, third


def test_expunge_of_one_placement_leaves_the_other() -> None:
    """One node expunges its placement of a message while another node merges both placements."""
    first, again, third = mail_saved_twice()
    first.number(MailDel(UidSet.of([1])))
    again.meet(third)
    assert [row.placements() for row in again.state.rows.values()] == [((Dot("a.x", 1), 0), (Dot("b.x", 1), 0))]
    again.meet(first)
    assert shown(again) == {2: b"x"}
    first.meet(again)
    first.number(MailDel(UidSet.of([2])))
    third.meet(first)
    assert shown(third) == {}


def test_message_keeps_the_save_date_of_its_earliest_placement() -> None:
    first, again, third = mail_saved_twice()
    earliest, later = (node.state.rows[1].saved_ms or 0 for node in (first, again))
    assert later < earliest, "age goes by the entries' numbers, and clocks may differ"
    first.number(MailDel(UidSet.of([1])))
    again.meet(third)
    assert [(row.dot, row.saved_ms) for row in again.state.rows.values()] == [(Dot("a.x", 1), earliest)]
    again.meet(first)
    assert [(row.dot, row.saved_ms) for row in again.state.rows.values()] == [(Dot("b.x", 1), earliest)]


def test_expunge_after_one_of_two_merges_of_a_fork_is_final() -> None:
    first, again, third = mail_saved_twice()
    fourth = Node("d", first.world)
    fourth.meet(again)
    again.meet(third)
    first.meet(fourth)
    first.number(MailDel(UidSet.of([2])))
    first.meet(again)
    assert shown(first) == {}


def test_flag_set_on_a_placement_survives_its_merge_with_another() -> None:
    first, again, third = mail_saved_twice()
    third.number(FlagAdd(UidSet.of([1]), ("a",)))
    again.meet(first)
    again.meet(third)
    assert [row.visible_flags() for row in again.state.rows.values()] == [{"a"}]


# ---- conflict.uid = "uidvalidity" --------------------------------------------------------------------------------


def two_raising_nodes() -> tuple[Node, Node]:
    world = World(random.Random(0))
    one, other = (Node(name, world, raises=True) for name in "ab")
    return one, other


def shown(node: Node) -> dict[int, bytes]:
    return {uid: row.guid[:1] for uid, row in sorted(node.state.rows.items())}


def test_uid_conflict_renumbers_all_and_raises_uidvalidity() -> None:
    one, other = two_raising_nodes()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.world.time = 10
    one.number(mail(2, b"y"))
    one.world.time = 5
    other.number(mail(2, b"z"))
    one.meet(other)
    other.meet(one)
    assert shown(one) == shown(other) == {3: b"x", 4: b"z", 5: b"y"}
    assert one.state.risen == other.state.risen == 1


def test_conflict_with_an_expunged_message_raises_uidvalidity() -> None:
    one, other = two_raising_nodes()
    one.number(mail(1, b"y"))
    other.number(mail(1, b"z"))
    other.number(MailDel(UidSet.of([1])))
    one.meet(other)
    assert (shown(one), one.state.risen) == ({2: b"y"}, 1)


def test_merge_without_uid_conflict_renumbers_nothing() -> None:
    one, other = two_raising_nodes()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.number(mail(2, b"y"))
    other.number(FlagAdd(UidSet.of([1]), ("a",)))
    modseq = one.state.modseq
    one.meet(other)
    assert (shown(one), one.state.risen) == ({1: b"x", 2: b"y"}, 0)
    assert one.state.modseq > modseq


def test_one_conflict_raises_uidvalidity_by_a_limited_gap() -> None:
    one, other = two_raising_nodes()
    for number in range(100):
        one.number(mail(number + 1, bytes([number])))
        other.number(mail(number + 1, bytes([100 + number])))
    assert merge(one.state, other.state, Dot("a.x", 101), one.anew).risen == GAP_MAX


def test_single_uids_are_replaced_once_uidvalidity_cannot_rise() -> None:
    one, other = two_raising_nodes()
    one.number(mail(1, b"x"))
    other.meet(one)
    one.number(mail(2, b"y"))
    other.number(mail(2, b"z"))
    for node in (one, other):
        node.state.risen = RISEN_MAX
    merged = merge(one.state, other.state, Dot("a.x", 9), one.anew)
    assert (sorted(merged.rows), merged.risen) == ([1, 3, 4], RISEN_MAX)
    for node in (one, other):
        node.state.risen, node.state.uidnext = 0, UID_MAX - MERGE_HEADROOM - 2
    merged = merge(one.state, other.state, Dot("a.x", 9), one.anew)
    assert (len(merged.rows), merged.risen, min(merged.rows)) == (3, 0, 1)


def test_messages_that_left_the_log_come_first_in_their_old_order() -> None:
    """b's entries were logged before a's, and have left the logs of both."""
    one, other = two_raising_nodes()
    other.number(mail(1, b"x"))
    one.meet(other)
    one.number(mail(2, b"y"))
    other.meet(one)
    common = set(one.state.context)
    seen = {Dot(origin, seq) for origin in common for seq in range(1, one.state.context[origin] + 1)}
    one.number(mail(3, b"p"))
    other.number(mail(3, b"q"))
    anew = Anew(lambda dot: None if dot in seen else one.world.times[dot])
    merged = merge(one.state, other.state, Dot("a.x", 9), anew)
    assert [merged.rows[uid].guid[:1] for uid in sorted(merged.rows)][:2] == [b"x", b"y"]
    assert (min(merged.rows), len(merged.rows)) == (4, 4)
