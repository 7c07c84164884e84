"""Merges of folder trees over random histories, and the rules that hold for every merged tree."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Stamp
from resync.clock import COUNTER_BITS
from resync.entry import NOWHERE, Change, FolderAnnotate, FolderCreate, FolderDelete, FolderRename, FolderSubscribe
from resync.folder_tree import (
    ROW_BYTES,
    SHARES_MAX,
    UIDVALIDITY_AHEAD_MAX,
    UIDVALIDITY_MAX,
    UIDVALIDITY_STEP,
    merge_trees,
    share_of,
    uidvalidities_after,
)
from resync.state import RISEN_MAX, ContradictionError
from tests.effort import examples
from tests.resync.tree_histories import Clock, Node


@given(st.integers(2, 4), st.integers(10, 80), st.randoms(use_true_random=False))
@settings(max_examples=examples(40, 150), deadline=None)
def test_trees_that_change_apart_become_equal(size: int, steps: int, rng: random.Random) -> None:
    clock = Clock()
    nodes = [Node(name, clock) for name in "abcd"[:size]]
    for _ in range(steps):
        if rng.random() < 0.7:
            rng.choice(nodes).act(rng)
        else:
            one, other = rng.sample(nodes, 2)
            one.meet(other)
    master, *others = nodes
    for _ in range(2):
        for node in others:
            master.meet(node)
    assert all(node.tree == master.tree for node in others)
    shown = {(one.mailbox_id, one.name): Stamp(one.time, one.sid) for one in master.tree.annotations.values()}
    kept = {NOWHERE, *(folder.mailbox_id for folder in master.living().values())}
    for (home, name), stamp in clock.annotated.items():
        assert home not in kept or shown[home, name] >= stamp, "the last change of an annotation is lost"


def two_nodes() -> tuple[Node, Node]:
    clock = Clock()
    return Node("a", clock), Node("b", clock)


def test_merge_separates_uidvalidities_that_could_become_equal() -> None:
    one, other = two_nodes()
    one.number(FolderCreate(b"a" * 16, "A", 5000))
    other.number(FolderCreate(b"b" * 16, "B", 5000 + RISEN_MAX))
    other.number(FolderCreate(b"c" * 16, "C", 5000 + RISEN_MAX + UIDVALIDITY_STEP))
    merged = merge_trees(one.tree, other.tree)
    first, second, third = (merged.folders[mailbox_id * 16].uidvalidity for mailbox_id in (b"a", b"b", b"c"))
    assert third == 5000 + RISEN_MAX + UIDVALIDITY_STEP
    assert [first - third, second - first] == [UIDVALIDITY_STEP, UIDVALIDITY_STEP]


@given(st.integers(2, SHARES_MAX), st.integers(0, 1 << 31))
def test_nodes_count_on_from_one_number_by_uidvalidities_of_their_own(nodes: int, highest: int) -> None:
    sids = [f"dc{number}" for number in range(nodes)]
    given = list[int]()
    for sid in sids:
        own = uidvalidities_after(highest, lambda _: False, share_of(sid, sids))
        ours = [number for number, _ in zip(own, range(3), strict=False)]
        steps = [higher - lower for lower, higher in pairwise([highest, *ours])]
        assert all(UIDVALIDITY_STEP <= step <= 2 * nodes * UIDVALIDITY_STEP for step in steps)
        assert max(steps) <= UIDVALIDITY_AHEAD_MAX, "other nodes would refuse it"
        given += ours
    assert all(higher - lower >= UIDVALIDITY_STEP for lower, higher in pairwise(sorted(given)))


def test_a_node_without_others_has_all_uidvalidities() -> None:
    own = uidvalidities_after(1_000, lambda _: False, share_of("dc1", []))
    assert [next(own), next(own)] == [1_000 + UIDVALIDITY_STEP, 1_000 + 2 * UIDVALIDITY_STEP]


def test_last_uidvalidity_is_reused_when_they_run_out() -> None:
    one, other = two_nodes()
    one.clock.time = UIDVALIDITY_MAX * 1000 << COUNTER_BITS
    for node in (one, other):
        node.number(FolderCreate(node.origin[:1].encode() * 16, "A", UIDVALIDITY_MAX))
    merged = merge_trees(one.tree, other.tree)
    assert {folder.uidvalidity for folder in merged.folders.values()} == {UIDVALIDITY_MAX}


def test_united_folder_renamed_on_a_branch_keeps_the_new_name() -> None:
    one, other = two_nodes()
    third = Node("c", one.clock)
    for node in (one, other):
        node.create("Work")
    first, second = (node.living()["Work"].mailbox_id for node in (one, other))
    third.meet(other)
    one.meet(other)
    assert set(one.living()) == {"Work"}
    third.rename("Work", "Later")
    one.meet(third)
    assert {name: folder.mailbox_id for name, folder in one.living().items()} == {"Work": first, "Later": second}
    other.meet(one)
    other.number(FolderDelete(second))
    one.number(FolderRename(second, "Last"))
    one.meet(other)
    assert set(one.living()) == {"Work"}, "a client's deletion of a folder is final"


def test_united_folder_that_moved_with_its_parent_can_be_renamed() -> None:
    one, other = two_nodes()
    third = Node("c", one.clock)
    for node in (one, other):
        node.create("Work/Done")
    second = other.living()["Work/Done"].mailbox_id
    third.meet(other)
    one.meet(other)
    one.number(FolderRename(second, "Past/Done"))
    third.rename("Work/Done", "Later")
    one.meet(third)
    assert one.living()["Later"].mailbox_id == second


NOTE = "/private/comment"


def comment(node: Node, mailbox_id: bytes) -> bytes | None:
    return node.tree.annotations[mailbox_id, NOTE].value


def annotate(node: Node, name: str, value: bytes | None) -> None:
    node.number(FolderAnnotate(node.living()[name].mailbox_id, ((NOTE, value),)))


@pytest.mark.parametrize("first", [b"one", None])
@pytest.mark.parametrize("second", [b"two", None])
def test_of_two_values_of_one_annotation_the_last_one_stays(first: bytes | None, second: bytes | None) -> None:
    one, other = two_nodes()
    one.create("Work")
    other.meet(one)
    annotate(one, "Work", first)
    annotate(other, "Work", second)
    one.meet(other)
    other.meet(one)
    assert comment(one, one.living()["Work"].mailbox_id) == second


def test_annotation_stays_with_a_renamed_folder_and_goes_with_a_deleted_one() -> None:
    one, other = two_nodes()
    one.create("Work")
    other.meet(one)
    annotate(one, "Work", b"x")
    other.rename("Work", "Later")
    one.meet(other)
    other.meet(one)
    assert comment(one, one.living()["Later"].mailbox_id) == b"x"
    annotate(one, "Later", b"y")
    other.number(FolderDelete(other.living()["Later"].mailbox_id))
    other.meet(one)
    assert not other.tree.annotations
    one.meet(other)
    assert one.tree == other.tree


def test_folder_takes_over_the_annotations_of_those_united_with_it() -> None:
    one, other = two_nodes()
    third = Node("c", one.clock)
    for node in (one, other):
        node.create("Work")
    first, second = (node.living()["Work"].mailbox_id for node in (one, other))
    third.meet(other)
    annotate(one, "Work", b"of the first")
    annotate(other, "Work", b"of the second")
    one.number(FolderAnnotate(first, (("/shared/one", b"1"),)))
    one.meet(other)
    assert {key[1]: value.value for key, value in one.tree.annotations.items() if key[0] == first} == {
        NOTE: b"of the second",
        "/shared/one": b"1",
    }
    third.rename("Work", "Later")
    one.meet(third)
    assert comment(one, second) == b"of the second", "a folder that comes back has its annotations"
    one.number(FolderAnnotate(second, ((NOTE, b"later"),)))
    assert comment(one, first) == b"of the second"


def test_parent_created_by_two_masters_is_one_folder() -> None:
    one, other = two_nodes()
    one.create("A")
    other.meet(one)
    one.rename("A", "B")
    other.create("A/x")
    first, second = (merge_trees(ours.tree, theirs.tree) for ours, theirs in ((one, other), (other, one)))
    assert first == second
    assert first.names() == {"A", "A/x", "B"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (FolderCreate(b"a" * 16, "C", 9 * UIDVALIDITY_STEP), "mailbox id that is already in use"),
        (FolderCreate(b"c" * 16, "C", UIDVALIDITY_STEP + RISEN_MAX + 1), "already given out"),
        (FolderCreate(b"c" * 16, "C", UIDVALIDITY_AHEAD_MAX + UIDVALIDITY_STEP + 10), "far future"),
        (FolderCreate(b"c" * 16, "A", 9 * UIDVALIDITY_STEP), "one name to two folders"),
        (FolderRename(b"b" * 16, "A"), "one name to two folders"),
        (FolderRename(b"c" * 16, "C"), "does not exist"),
        (FolderDelete(b"c" * 16), "does not exist"),
        (FolderAnnotate(b"c" * 16, (("/private/comment", b"x"),)), "does not exist"),
    ],
)
def test_change_that_no_master_can_have_numbered_is_refused(change: Change, error: str) -> None:
    node, _ = two_nodes()
    node.number(FolderCreate(b"a" * 16, "A", 1), FolderCreate(b"b" * 16, "B", 1 + UIDVALIDITY_STEP))
    with pytest.raises(ContradictionError, match=error):
        node.number(change)


def test_tree_refuses_repeated_entries_and_skipped_modseqs() -> None:
    node, _ = two_nodes()
    node.number(FolderSubscribe("A", subscribed=True))
    with pytest.raises(ContradictionError, match="has already seen it"):
        node.tree.apply(node.history[0])
    with pytest.raises(ContradictionError, match="MODSEQ"):
        node.step(node.entry((FolderSubscribe("A", subscribed=False),), [node.history[0].dot], 3))


def test_large_tree_difference_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resync.merge.BYTES_AT_ONCE", 2 * ROW_BYTES)
    one, other = two_nodes()
    for number in range(5):
        one.create(f"one{number}")
        other.number(FolderSubscribe(f"other{number}", subscribed=True))
    other.number(FolderAnnotate(NOWHERE, (("/private/a", b"x" * 9 * ROW_BYTES), ("/private/b", b"y"))))
    one.meet(other)
    other.meet(one)
    assert len(one.history[-1].changes) == 3
    assert other.tree == one.tree
