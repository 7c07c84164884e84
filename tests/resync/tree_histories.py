"""Random histories of a tree at several nodes that number apart, with each merge checked."""

from __future__ import annotations

import random
from itertools import pairwise

from protocol.values import Dot, Stamp
from resync.entry import (
    NOWHERE,
    AnnotationState,
    Change,
    Entry,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    tree_id,
)
from resync.folder_tree import GIVEN_UP, SEPARATOR, UNITED, TreeState, merge_trees, tree_difference, uidvalidities_after
from resync.state import RISEN_MAX
from tests.resync.replaying import replay_tree

ALICE = "alice"
TREE = tree_id(ALICE)


class Node:
    """A node that changes a tree as a master does: unique names, missing parents made, subfolders moved along."""

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
        for change in entry.changes:
            if isinstance(change, FolderAnnotate):
                self.clock.annotated |= {(change.mailbox_id, name): entry.stamp for name, _ in change.values}
        self.show()

    def show(self) -> None:
        """Check that no two folders of one name can get one UIDVALIDITY, even if merges of mail raise it."""
        for name, folder in self.living().items():
            shown = self.shown.setdefault(name, set())
            shown.add((folder.uidvalidity, folder.mailbox_id))
            for low, high in pairwise(sorted(shown)):
                assert low[1] == high[1] or high[0] - low[0] > RISEN_MAX, "a client may take one folder for another"

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
                for path, uidvalidity in zip(missing, uidvalidities_after(highest, lambda _: False), strict=False)
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
        if choice > 0.8:
            home = rng.choice([NOWHERE, *(folder.mailbox_id for _, folder in sorted(living.items()))])
            values = {f"/private/{rng.choice('ab')}": rng.choice([None, rng.randbytes(2)]) for _ in range(2)}
            self.number(FolderAnnotate(home, tuple(values.items())))
        elif choice < 0.4 or not living:
            if name not in living:
                self.create(name)
        elif choice < 0.6:
            if (old := rng.choice(sorted(living))) != name:
                self.rename(old, name)
        elif choice < 0.7:
            self.number(FolderDelete(living[rng.choice(sorted(living))].mailbox_id))
        else:
            self.number(FolderSubscribe(name, rng.random() < 0.5))

    def meet(self, other: Node) -> None:
        """Let the node that is behind adopt the other's tree; on a fork this node merges."""
        if is_covered(self.tree, other.tree):
            self.adopt(other)
        elif is_covered(other.tree, self.tree):
            other.adopt(self)
        else:
            merged = merge_trees(self.tree, other.tree)
            assert merged == merge_trees(other.tree, self.tree), "a merge depends on the order of its sides"
            check_merged(merged, self.tree, other.tree)
            check_annotations(merged, self.tree, other.tree)
            changes = tree_difference(merged, (self.tree, other.tree))
            entry = self.entry(changes, [self.history[-1].dot, other.history[-1].dot], merged.modseq)
            path = [*other.history, entry]
            self.step(entry)
            assert replay_tree(path) == self.tree == replay_tree(self.history), (
                "the two paths to a merge lead to different states"
            )

    def adopt(self, other: Node) -> None:
        self.tree, self.history = replay_tree(other.history), list(other.history)
        self.show()


class Clock:
    def __init__(self) -> None:
        self.time = 1 << 20
        self.annotated: dict[tuple[bytes, str], Stamp] = {}  # when each annotation was changed last, at any node

    def tick(self) -> int:
        self.time += 1
        return self.time


def is_covered(one: TreeState, other: TreeState) -> bool:
    return all(other.context.get(origin, 0) >= seq for origin, seq in one.context.items())


def check_annotations(merged: TreeState, *sides: TreeState) -> None:
    """Compare with a plain reference: all changes that the sides show, in the order of their stamps."""
    expected: dict[tuple[bytes, str], AnnotationState] = {}
    changes = [(one, side) for side in sides for one in side.annotations.values()]
    for one, side in sorted(changes, key=lambda change: (change[0].time, change[0].sid)):
        folder = merged.folders.get(one.mailbox_id)
        if folder is None or not folder.deleted or folder.sid == UNITED:
            expected[one.mailbox_id, one.name] = one
        if folder is not None and folder.deleted and folder.sid == UNITED and one.mailbox_id in living_ids(side):
            for heir in living_ids(merged):
                if merged.folders[heir].name == folder.name:
                    expected[heir, one.name] = one._replace(mailbox_id=heir)
    assert merged.annotations == expected


def living_ids(tree: TreeState) -> set[bytes]:
    return {folder.mailbox_id for folder in tree.folders.values() if not folder.deleted}


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
                assert after.uidvalidity != before.uidvalidity, "another folder has this name and UIDVALIDITY"
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
