"""The joining of folder trees over random histories: what must hold of every tree that comes of it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot
from resync.clock import COUNTER_BITS
from resync.entry import (
    Change,
    Entry,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    tree_id,
)
from resync.folder_tree import (
    GIVEN_UP,
    SEPARATOR,
    UIDVALIDITY_AHEAD_MAX,
    UIDVALIDITY_MAX,
    UIDVALIDITY_STEP,
    UNITED,
    TreeState,
    merge_trees,
    tree_difference,
    uidvalidities_after,
)
from resync.state import RISEN_MAX, ContradictionError
from tests.resync.replaying import replay_tree

ALICE = "alice"
TREE = tree_id(ALICE)


class Node:
    """Changes a tree as a master would: names are unique, parents are made, what is below a folder moves with it."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.origin, self.clock, self.seq = f"{name}.x", clock, 0
        self.tree = TreeState()
        self.history: list[Entry] = []
        self.shown: dict[str, set[tuple[int, bytes]]] = {}  # name -> (UIDVALIDITY, mailbox id), now and ever before

    def number(self, *changes: Change) -> None:
        self.step(self.entry(changes, [self.history[-1].dot] if self.history else [], self.tree.modseq + 1))

    def entry(self, changes: tuple[Change, ...], predecessors: list[Dot], modseq: int) -> Entry:
        self.seq += 1
        return Entry(
            Dot(self.origin, self.seq), tuple(predecessors), self.clock.tick(), modseq, ALICE, TREE, 0, changes
        )

    def step(self, entry: Entry) -> None:
        before = dict(self.tree.folders)
        self.tree.apply(entry)
        self.history.append(entry)
        for mailbox_id, folder in before.items():
            assert self.tree.folders[mailbox_id].uidvalidity >= folder.uidvalidity, "UIDVALIDITY fell"
            by_user = folder.deleted and folder.sid != UNITED
            assert self.tree.folders[mailbox_id].deleted >= by_user, "a deleted folder came back"
        self.show()

    def show(self) -> None:
        """Merges of mail may raise each UIDVALIDITY: not even then may two folders look alike under one name."""
        for name, folder in self.living().items():
            shown = self.shown.setdefault(name, set())
            shown.add((folder.uidvalidity, folder.mailbox_id))
            for low, high in pairwise(sorted(shown)):
                assert low[1] == high[1] or high[0] - low[0] > RISEN_MAX, "one folder may be taken for another"

    def living(self) -> dict[str, FolderState]:
        return {folder.name: folder for folder in self.tree.folders.values() if not folder.deleted}

    def create(self, name: str) -> None:
        levels = name.split(SEPARATOR)
        paths = [SEPARATOR.join(levels[: length + 1]) for length in range(len(levels))]
        highest = max((folder.uidvalidity for folder in self.tree.folders.values()), default=0)
        missing = [path for path in paths if path not in self.living()]
        self.number(
            *(
                FolderCreate(self.clock.tick().to_bytes(16), path, uidvalidity)
                for path, uidvalidity in zip(missing, uidvalidities_after(highest), strict=False)
            )
        )

    def rename(self, old: str, new: str) -> None:
        moving = {name: folder for name, folder in self.living().items() if f"{name}/".startswith(f"{old}/")}
        names = {folder.mailbox_id: new + name.removeprefix(old) for name, folder in moving.items()}
        if set(names.values()) & (set(self.living()) - set(moving)) or new.startswith(f"{old}/"):
            return
        if SEPARATOR in new and (parent := new.rpartition(SEPARATOR)[0]) not in self.living():
            self.create(parent)
        self.number(*(FolderRename(mailbox_id, name) for mailbox_id, name in names.items()))

    def act(self, rng: random.Random) -> None:
        name, living = SEPARATOR.join(rng.choices("abc", k=rng.randint(1, 3))), self.living()
        choice = rng.random()
        if choice < 0.4 or not living:
            if name not in living:
                self.create(name)
        elif choice < 0.7:
            if (old := rng.choice(sorted(living))) != name:
                self.rename(old, name)
        elif choice < 0.85:
            self.number(FolderDelete(living[rng.choice(sorted(living))].mailbox_id))
        else:
            self.number(FolderSubscribe(name, rng.random() < 0.5))

    def meet(self, other: Node) -> None:
        """The one behind steps along; on a fork this node merges."""
        if within(self.tree, other.tree):
            self.adopt(other)
        elif within(other.tree, self.tree):
            other.adopt(self)
        else:
            merged = merge_trees(self.tree, other.tree)
            assert merged == merge_trees(other.tree, self.tree), "a merge depends on the order of its sides"
            check_merged(merged, self.tree, other.tree)
            changes = tree_difference(merged, (self.tree, other.tree))
            entry = self.entry(changes, [self.history[-1].dot, other.history[-1].dot], merged.modseq)
            path = [*other.history, entry]
            self.step(entry)
            assert replay_tree(path) == self.tree == replay_tree(self.history), "the two ways to a merge end apart"

    def adopt(self, other: Node) -> None:
        self.tree, self.history = replay_tree(other.history), list(other.history)
        self.show()


class Clock:
    def __init__(self) -> None:
        self.time = 1 << 20

    def tick(self) -> int:
        self.time += 1
        return self.time


def within(one: TreeState, other: TreeState) -> bool:
    return all(other.context.get(origin, 0) >= seq for origin, seq in one.context.items())


def check_merged(merged: TreeState, *sides: TreeState) -> None:
    folders = [folder for folder in merged.folders.values() if folder.sid != GIVEN_UP]
    living = [folder.name for folder in folders if not folder.deleted]
    assert len(set(living)) == len(living), "one name, two folders"
    assert len({folder.uidvalidity for folder in folders}) == len(folders), "one UIDVALIDITY, two folders"
    for side in sides:
        for name in side.names() & set(living):
            (before,) = (folder for folder in side.folders.values() if folder.name == name and not folder.deleted)
            (after,) = (folder for folder in folders if folder.name == name and not folder.deleted)
            if before.mailbox_id != after.mailbox_id:
                assert after.uidvalidity != before.uidvalidity, "another folder looks like the one of this name"
    for name in living:
        parent = name.rpartition(SEPARATOR)[0]
        if parent and parent not in living:
            assert any(name in side.names() and parent not in side.names() for side in sides), "a parent is missing"
    for mailbox_id in merged.folders:
        states = [side.folders[mailbox_id] for side in sides if mailbox_id in side.folders]
        if states:
            last = max(states, key=lambda state: (state.time, state.sid))
            assert merged.folders[mailbox_id].name == last.name
            by_user = any(state.deleted and state.sid != UNITED for state in states)
            assert merged.folders[mailbox_id].deleted >= by_user
            united = any(state.deleted and state.sid == UNITED for state in states)
            assert by_user or united or not merged.folders[mailbox_id].deleted or last.name in merged.names()


@given(st.integers(2, 4), st.integers(10, 80), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_trees_that_change_apart_become_one(size: int, steps: int, rng: random.Random) -> None:
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


def pair() -> tuple[Node, Node]:
    clock = Clock()
    return Node("a", clock), Node("b", clock)


def test_folders_of_two_sides_that_merges_of_mail_could_make_look_alike_get_other_uidvalidities() -> None:
    one, other = pair()
    one.number(FolderCreate(b"a" * 16, "A", 5000))
    other.number(FolderCreate(b"b" * 16, "B", 5000 + RISEN_MAX))
    other.number(FolderCreate(b"c" * 16, "C", 5000 + RISEN_MAX + UIDVALIDITY_STEP))
    merged = merge_trees(one.tree, other.tree)
    first, second, third = (merged.folders[mailbox_id * 16].uidvalidity for mailbox_id in (b"a", b"b", b"c"))
    assert third == 5000 + RISEN_MAX + UIDVALIDITY_STEP
    assert [first - third, second - first] == [UIDVALIDITY_STEP, UIDVALIDITY_STEP]


def test_where_uidvalidities_run_out_the_last_one_stays() -> None:
    one, other = pair()
    one.clock.time = UIDVALIDITY_MAX * 1000 << COUNTER_BITS
    for node in (one, other):
        node.number(FolderCreate(node.origin[:1].encode() * 16, "A", UIDVALIDITY_MAX))
    merged = merge_trees(one.tree, other.tree)
    assert {folder.uidvalidity for folder in merged.folders.values()} == {UIDVALIDITY_MAX}


def test_a_folder_that_was_united_and_renamed_apart_is_there_under_its_new_name() -> None:
    one, other = pair()
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
    assert set(one.living()) == {"Work"}, "who deletes a folder does so for good"


def test_a_united_folder_that_moved_along_with_its_parent_may_still_be_renamed_apart() -> None:
    one, other = pair()
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


def test_a_parent_that_two_masters_make_is_one_folder() -> None:
    one, other = pair()
    one.create("A")
    other.meet(one)
    one.rename("A", "B")
    other.create("A/x")
    first, second = (merge_trees(ours.tree, theirs.tree) for ours, theirs in ((one, other), (other, one)))
    assert first == second
    assert first.names() == {"A", "A/x", "B"}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (FolderCreate(b"a" * 16, "C", 9 * UIDVALIDITY_STEP), "mailbox id that is already in use"),
        (FolderCreate(b"c" * 16, "C", UIDVALIDITY_STEP + RISEN_MAX + 1), "already given out"),
        (FolderCreate(b"c" * 16, "C", UIDVALIDITY_AHEAD_MAX + UIDVALIDITY_STEP + 10), "far future"),
        (FolderCreate(b"c" * 16, "A", 9 * UIDVALIDITY_STEP), "one name to two folders"),
        (FolderRename(b"b" * 16, "A"), "one name to two folders"),
        (FolderRename(b"c" * 16, "C"), "does not exist"),
        (FolderDelete(b"c" * 16), "does not exist"),
    ],
)
def test_a_change_that_no_master_can_have_numbered_is_refused(change: Change, wrong: str) -> None:
    node, _ = pair()
    node.number(FolderCreate(b"a" * 16, "A", 1), FolderCreate(b"b" * 16, "B", 1 + UIDVALIDITY_STEP))
    with pytest.raises(ContradictionError, match=wrong):
        node.number(change)


def test_an_entry_stands_on_a_tree_once_and_leaves_no_modseq_out() -> None:
    node, _ = pair()
    node.number(FolderSubscribe("A", subscribed=True))
    with pytest.raises(ContradictionError, match="has already seen it"):
        node.tree.apply(node.history[0])
    with pytest.raises(ContradictionError, match="MODSEQ"):
        node.step(node.entry((FolderSubscribe("A", subscribed=False),), [node.history[0].dot], 3))


def test_a_large_difference_is_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resync.folder_tree.NAMES_AT_ONCE", 2)
    one, other = pair()
    for number in range(5):
        one.create(f"one{number}")
        other.number(FolderSubscribe(f"other{number}", subscribed=True))
    one.meet(other)
    other.meet(one)
    assert len(one.history[-1].changes) == 3
    assert other.tree == one.tree
