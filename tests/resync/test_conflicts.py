"""Conflicts that merges decide, by kind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from protocol.values import Dot, UidSet
from resync.clock import COUNTER_BITS
from resync.conflicts import NO_CONFLICTS, Conflicts, Since, of_mailboxes, of_trees
from resync.entry import FlagAdd, FlagDel, FolderState, MailDel
from resync.folder_tree import UIDVALIDITY_STEP, TreeState, merge_trees
from resync.merge import Anew, merge
from resync.state import MailboxState
from tests.resync.histories import Node, World, mail

PARTED = 100
SINCE = Since(PARTED << COUNTER_BITS, PARTED << COUNTER_BITS)
ONE = UidSet.of([1])


def parted() -> tuple[Node, Node]:
    """Return two nodes that show the messages x and y, x with the flag `old`, and that part then."""
    world = World(random.Random(0))
    one, other = (Node(name, world) for name in "ab")
    for change in (mail(1, b"x"), mail(2, b"y"), FlagAdd(ONE, ("old",))):
        one.number(change)
    other.meet(one)
    world.time = PARTED
    return one, other


def decided(one: Node, other: Node, since: Since | None = SINCE) -> Conflicts:
    merged = merge(one.state, other.state, Dot("m.x", 1))
    found = of_mailboxes(merged, (one.state, other.state), since)
    assert found == of_mailboxes(merged, (other.state, one.state), since and Since(*reversed(since))), "symmetric"
    return found


def test_changes_of_one_side_are_no_conflicts() -> None:
    one, other = parted()
    one.number(mail(3, b"z"))
    one.number(FlagAdd(ONE, ("new",)))
    one.number(FlagDel(ONE, ("old",)))
    one.number(MailDel(UidSet.of([2])))
    assert decided(one, other) == NO_CONFLICTS


def test_messages_whose_uid_changes_are_counted() -> None:
    one, other = parted()
    one.number(mail(3, b"z"))
    for uid, name in ((3, b"v"), (4, b"w")):
        other.number(mail(uid, name))
    assert decided(one, other) == Conflicts(uid=2), "one side has not promised UID 4 to new mail"


def test_flag_that_both_sides_change_is_one_conflict_of_its_message() -> None:
    one, other = parted()
    for node in (one, other):
        node.number(FlagAdd(ONE, ("a", "b")))
    one.number(FlagDel(ONE, ("old",)))
    assert decided(one, other) == Conflicts(flags=1)
    other.number(FlagAdd(UidSet.of([2]), ("a",)))
    assert decided(one, other) == Conflicts(flags=1)


def test_each_differing_flag_counts_if_nobody_knows_when_the_sides_parted() -> None:
    one, other = parted()
    one.number(FlagDel(ONE, ("old",)))
    assert decided(one, other) == NO_CONFLICTS
    assert decided(one, other, None) == Conflicts(flags=1)


def test_message_that_came_on_both_sides_is_counted() -> None:
    one, other = parted()
    one.number(mail(3, b"z"))
    other.number(mail(3, b"z"))
    assert decided(one, other) == Conflicts(uid=1, delivery=1)


def test_uidvalidity_that_rises_is_counted() -> None:
    one, other = parted()
    one.number(mail(3, b"z"))
    other.number(mail(3, b"v"))
    merged = merge(one.state, other.state, Dot("m.x", 1), Anew(lambda _: 1))
    assert merged.risen
    assert of_mailboxes(merged, (one.state, other.state), SINCE) == Conflicts(uid=4, uidvalidity=1)
    again = merge(merged, replace_risen(merged), Dot("m.x", 2))
    assert of_mailboxes(again, (merged, replace_risen(merged)), SINCE).uidvalidity == 0


def replace_risen(state: MailboxState) -> MailboxState:
    return replace(state, risen=0, rows=dict(state.rows))


def folder(number: int, name: str, *, deleted: bool = False, sid: str = "a") -> FolderState:
    return FolderState(bytes([number]) * 16, "alice", name, number * UIDVALIDITY_STEP, deleted=deleted, time=1, sid=sid)


def tree(origin: str, *folders: FolderState) -> TreeState:
    return TreeState.of(1, {origin: 1}, folders)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([folder(1, "a")], [folder(2, "b")], NO_CONFLICTS),
        ([folder(1, "a"), folder(2, "b")], [folder(1, "a"), folder(3, "b")], Conflicts(folder_name=1, uidvalidity=1)),
        ([folder(1, "a")], [folder(1, "a", deleted=True)], NO_CONFLICTS),
        ([folder(1, "a"), folder(2, "b")], [folder(3, "a"), folder(4, "b")], Conflicts(folder_name=2, uidvalidity=2)),
    ],
)
def test_folders_of_one_name_are_counted(
    ours: list[FolderState], theirs: list[FolderState], expected: Conflicts
) -> None:
    sides = tree("dc1.a", *ours), tree("dc2.a", *theirs)
    merged = merge_trees(*sides)
    assert of_trees(merged, sides) == of_trees(merged, sides[::-1]) == expected
    assert of_trees(merge_trees(merged, sides[0]), (merged, sides[0])).folder_name == 0, "it is decided"
