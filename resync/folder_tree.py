"""A user's folder tree as values, the application of entries to it, and the merge of two of its branches.

Folders are identified by their mailbox ids. A folder is deleted if either side deleted it; its name is that of its last
change. Two living folders of one name become one: the one with the lower id stays, with a UIDVALIDITY above all others,
and the other one is deleted, so that its mail can be moved over. The deleted one comes back if it was renamed since
then on a branch that had not seen the merge. A folder keeps its parents: a parent that would be missing is created if
no side showed the folder without it. A subscription follows its last change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from protocol.values import UID_MAX, Dot, Stamp, context_dots, context_of
from resync.entry import (
    ID_BYTES,
    Change,
    Entry,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    SubscriptionState,
    TreeMerge,
)
from resync.state import RISEN_MAX, ContradictionError, joined

UIDVALIDITY_STEP = RISEN_MAX + 1
"""Distance between folders' UIDVALIDITYs: merges may raise one while a new folder is created in ignorance of that."""
UIDVALIDITY_MAX = UID_MAX - RISEN_MAX
"""Highest UIDVALIDITY of a folder in the tree."""
UIDVALIDITY_AHEAD_MAX = 1 << 24
"""Limit of a new UIDVALIDITY above both the seconds since the epoch and all that the user's folders have had."""
NAMES_AT_ONCE = 10_000
"""Folders, and subscriptions, of one change: 32 MiB at most; the wire takes literals of 64 MiB."""
SEPARATOR = "/"
UNITED = ""
"""Mark in place of a SID: a merge, not a user, has deleted the folder, because another one has its name."""
GIVEN_UP = "-"
"""Mark in place of a SID and a name: a UIDVALIDITY that a folder had until a merge, kept like a deleted folder."""


@dataclass(slots=True)
class TreeState:
    """A tree at one point in its history. `folders` are by mailbox id, `subscriptions` by name."""

    modseq: int = 0
    context: dict[str, int] = field(default_factory=dict)
    folders: dict[bytes, FolderState] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionState] = field(default_factory=dict)
    _highest: int = field(init=False, repr=False, compare=False)  # of all UIDVALIDITYs

    def __post_init__(self) -> None:
        self._highest = max((folder.uidvalidity for folder in self.folders.values()), default=-UIDVALIDITY_STEP)

    def has_seen(self, dot: Dot) -> bool:
        """Return True if the entry is part of this state's history."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def names(self) -> set[str]:
        """Return the names of all folders that are not deleted."""
        return {folder.name for folder in self.folders.values() if not folder.deleted}

    def apply(self, entry: Entry) -> None:
        """Apply an entry that stands on this state. Raises ContradictionError, which leaves the state void."""
        if self.has_seen(entry.dot):
            raise ContradictionError(f"{entry.dot} builds on a tree that has already seen it")
        if not entry.is_merge and entry.modseq != self.modseq + 1:
            raise ContradictionError(f"{entry.dot} has MODSEQ {entry.modseq}, but the tree is at {self.modseq}")
        for change in entry.changes:
            self._step(entry, change)
        if len(self.names()) != sum(not folder.deleted for folder in self.folders.values()):
            raise ContradictionError(f"{entry.dot} gives one name to two folders")
        self.modseq = entry.modseq
        self.context[entry.dot.origin] = entry.dot.seq

    def _step(self, entry: Entry, change: Change) -> None:
        stamp = entry.stamp
        match change:
            case FolderCreate(mailbox_id, name, uidvalidity):
                self._check_new(entry, change)
                self.folders[mailbox_id] = FolderState(
                    mailbox_id, entry.user, name, uidvalidity, deleted=False, time=stamp.time, sid=stamp.sid
                )
                self._highest = uidvalidity
            case FolderRename(mailbox_id, name):
                self.folders[mailbox_id] = renamed(self._existing(entry, mailbox_id), name, stamp)
            case FolderDelete(mailbox_id):
                old = self._existing(entry, mailbox_id)
                self.folders[mailbox_id] = old._replace(deleted=True, time=stamp.time, sid=stamp.sid)
            case FolderSubscribe(name, subscribed):
                self.subscriptions[name] = SubscriptionState(entry.user, name, subscribed, *stamp)
            case TreeMerge(context, folders, subscriptions):
                self._check_merge(entry, change)
                self.context = context_of(context)
                self.folders |= {folder.mailbox_id: folder for folder in folders}
                self._highest = max((self._highest, *(folder.uidvalidity for folder in folders)))
                self.subscriptions |= {subscription.name: subscription for subscription in subscriptions}
            case _:
                raise AssertionError(f"{type(change).__name__} does not change a tree")

    def _existing(self, entry: Entry, mailbox_id: bytes) -> FolderState:
        if mailbox_id not in self.folders:
            raise ContradictionError(f"{entry.dot} changes a folder that does not exist")
        return self.folders[mailbox_id]

    def _check_new(self, entry: Entry, create: FolderCreate) -> None:
        if create.mailbox_id in self.folders:
            raise ContradictionError(f"{entry.dot} creates a folder with a mailbox id that is already in use")
        if create.uidvalidity < self._highest + UIDVALIDITY_STEP:
            raise ContradictionError(f"{entry.dot} creates a folder with a UIDVALIDITY that was already given out")
        if create.uidvalidity > max(self._highest, entry.stamp.ms // 1000) + UIDVALIDITY_AHEAD_MAX:
            raise ContradictionError(f"{entry.dot} creates a folder with a UIDVALIDITY in the far future")

    def _check_merge(self, entry: Entry, merge: TreeMerge) -> None:
        seen = context_of(merge.context)
        if any(seen.get(origin, 0) < seq for origin, seq in self.context.items()):
            raise ContradictionError(f"{entry.dot} has a context that lacks entries of this tree")
        users = {folder.user for folder in merge.folders} | {one.user for one in merge.subscriptions}
        if users - {entry.user}:
            raise ContradictionError(f"{entry.dot} changes another user's folder")
        for folder in merge.folders:
            old = self.folders.get(folder.mailbox_id, folder)
            if folder.uidvalidity < old.uidvalidity or (old.deleted and old.sid != UNITED and not folder.deleted):
                raise ContradictionError(f"{entry.dot} lowers a UIDVALIDITY or brings a deleted folder back")


def renamed(folder: FolderState, name: str, stamp: Stamp) -> FolderState:
    """Return the folder under a new name. A united folder is renamed along with its parent and stays united."""
    is_united = folder.deleted and folder.sid == UNITED
    return folder._replace(name=name, time=stamp.time, sid=UNITED if is_united else stamp.sid)


def uidvalidities_after(highest: int) -> Iterator[int]:
    """Yield UIDVALIDITYs for new folders, at last the maximum for ever.

    `highest` is the highest one that any of the user's folders has or had.
    """
    while True:
        highest = min(highest + UIDVALIDITY_STEP, UIDVALIDITY_MAX)
        yield highest


def merge_trees(ours: TreeState, theirs: TreeState) -> TreeState:
    """Return the tree that has seen both branches. Symmetric."""
    merged = TreeState(
        modseq=max(ours.modseq, theirs.modseq) + 1,
        context=joined(ours.context, theirs.context),
    )
    for mailbox_id in ours.folders.keys() | theirs.folders.keys():
        sides = [tree.folders[mailbox_id] for tree in (ours, theirs) if mailbox_id in tree.folders]
        merged.folders[mailbox_id] = _join(sides)
    for name in ours.subscriptions.keys() | theirs.subscriptions.keys():
        subscriptions = [tree.subscriptions[name] for tree in (ours, theirs) if name in tree.subscriptions]
        merged.subscriptions[name] = max(subscriptions, key=lambda one: (one.time, one.sid, one.subscribed))
    uidvalidities = uidvalidities_after(max((folder.uidvalidity for folder in merged.folders.values()), default=0))
    _unite_names(merged, uidvalidities)
    _keep_uidvalidities_apart(merged, (ours, theirs), uidvalidities)
    _create_parents(merged, (ours, theirs), uidvalidities)
    return merged


def tree_difference(merged: TreeState, sides: Sequence[TreeState]) -> tuple[TreeMerge, ...]:
    """Return the changes that take each side to the merged tree; several if it is too large for one."""
    folders = {
        mailbox_id: folder
        for mailbox_id, folder in merged.folders.items()
        if any(side.folders.get(mailbox_id) != folder for side in sides)
    }
    subscriptions = {
        name: subscription
        for name, subscription in merged.subscriptions.items()
        if any(side.subscriptions.get(name) != subscription for side in sides)
    }
    context = context_dots(merged.context)
    changed = [folders[mailbox_id] for mailbox_id in sorted(folders)]
    subscribed = [subscriptions[name] for name in sorted(subscriptions)]
    return tuple(
        TreeMerge(context, tuple(changed[start:end]), tuple(subscribed[start:end]))
        for start in range(0, max(len(changed), len(subscribed), 1), NAMES_AT_ONCE)
        for end in [start + NAMES_AT_ONCE]
    )


def _join(sides: list[FolderState]) -> FolderState:
    """Join both sides' versions of one folder.

    A deletion by a user is final; a rename of a united folder separates it again.
    """
    last = max(sides, key=lambda side: (side.time, side.sid, side))
    gone = [side for side in sides if side.deleted]
    joined = last._replace(uidvalidity=max(side.uidvalidity for side in sides))
    if any(side.sid != UNITED for side in gone):
        return joined._replace(deleted=True)
    if gone and last.time == max(side.time for side in gone):
        return joined._replace(deleted=True, sid=UNITED)
    return joined


def _unite_names(tree: TreeState, uidvalidities: Iterator[int]) -> None:
    """Leave one living folder for each name: the one with the lowest id, whatever the order of the sides."""
    by_name: dict[str, list[FolderState]] = {}
    for mailbox_id in sorted(tree.folders):
        folder = tree.folders[mailbox_id]
        if not folder.deleted:
            by_name.setdefault(folder.name, []).append(folder)
    for name in sorted(by_name):
        first, *others = by_name[name]
        if others:
            tree.folders[first.mailbox_id] = first._replace(uidvalidity=next(uidvalidities))
        for other in others:
            tree.folders[other.mailbox_id] = other._replace(deleted=True, sid=UNITED)


def _keep_uidvalidities_apart(tree: TreeState, sides: Sequence[TreeState], uidvalidities: Iterator[int]) -> None:
    """Give new UIDVALIDITYs to folders of different sides that have, or may come to have, the same one.

    Otherwise one of them could look like the other.
    """
    folders = [folder for side in sides for folder in side.folders.values()]
    given = sorted({(folder.uidvalidity, folder.mailbox_id) for folder in folders})
    close = {
        holder
        for lower, higher in pairwise(given)
        if lower[1] != higher[1] and higher[0] - lower[0] < UIDVALIDITY_STEP
        for holder in (lower, higher)
    }
    for mailbox_id in sorted(tree.folders):
        folder = tree.folders[mailbox_id]
        if (folder.uidvalidity, mailbox_id) in close and folder.sid != GIVEN_UP:
            tree.folders[mailbox_id] = folder._replace(uidvalidity=next(uidvalidities))
    for uidvalidity, mailbox_id in given:
        folder = tree.folders[mailbox_id]
        if folder.uidvalidity != uidvalidity:
            past = _new_id(mailbox_id.hex(), GIVEN_UP, uidvalidity)
            tree.folders[past] = FolderState(
                past, folder.user, GIVEN_UP, uidvalidity, deleted=True, time=1, sid=GIVEN_UP
            )


def _create_parents(tree: TreeState, sides: Sequence[TreeState], uidvalidities: Iterator[int]) -> None:
    """Create the parents of folders that one side put below a folder that the other side moved or deleted."""
    names, names_of = tree.names(), [side.names() for side in sides]
    for child in sorted(tree.folders.values(), key=lambda folder: (folder.name, folder.mailbox_id)):
        if child.deleted:
            continue
        homes = [
            names
            for side, names in zip(sides, names_of, strict=True)
            if _lives_as(side.folders.get(child.mailbox_id), child.name)
        ]
        levels = child.name.split(SEPARATOR)
        for parent in (SEPARATOR.join(levels[:length]) for length in range(1, len(levels))):
            if parent not in names and all(parent in home for home in homes):
                uidvalidity = next(uidvalidities)
                mailbox_id = _new_id(child.user, parent, uidvalidity)
                tree.folders[mailbox_id] = child._replace(mailbox_id=mailbox_id, name=parent, uidvalidity=uidvalidity)
                names.add(parent)


def _lives_as(folder: FolderState | None, name: str) -> bool:
    return folder is not None and not folder.deleted and folder.name == name


def _new_id(user: str, name: str, uidvalidity: int) -> bytes:
    """Return an id that is equal on all nodes that merge the same branches.

    It is unique because no other folder had this UIDVALIDITY.
    """
    return blake2b(f"folder:{uidvalidity}:{user}:{name}".encode(), digest_size=ID_BYTES).digest()
