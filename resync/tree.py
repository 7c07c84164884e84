"""A user's folder tree as values, what an entry makes of it, and the joining of two of its branches.

Folders are known by their mailbox ids. A folder is deleted if either side deleted it; its name is that of its last
change. Two living folders of one name become one: the one with the lower id stays, with a UIDVALIDITY above all
others, and the other one is deleted, so that its mail can be moved over. A subscription is as it was last set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protocol.values import Dot
from resync.entry import (
    Entry,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    SubscriptionState,
    TreeMerge,
)
from resync.state import ContradictionError

UIDVALIDITY_AHEAD_MAX = 1 << 24
"""A new UIDVALIDITY may be so far above the seconds since the epoch and above all that the user's folders had."""


@dataclass(slots=True)
class TreeState:
    """A tree as of one point in its history. `folders` by mailbox id, `subscriptions` by name."""

    modseq: int = 0
    context: dict[str, int] = field(default_factory=dict)
    folders: dict[bytes, FolderState] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionState] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Step to the entry, which stands on this state. Raises ContradictionError, and then the state is void."""
        stamp = entry.stamp
        self._check(entry)
        for change in entry.changes:
            match change:
                case FolderCreate(mailbox_id, name, uidvalidity):
                    self.folders[mailbox_id] = FolderState(
                        mailbox_id, entry.user, name, uidvalidity, deleted=False, time=stamp.time, sid=stamp.sid
                    )
                case FolderRename(mailbox_id, name):
                    old = self.folders[mailbox_id]
                    self.folders[mailbox_id] = old._replace(name=name, time=stamp.time, sid=stamp.sid)
                case FolderDelete(mailbox_id):
                    old = self.folders[mailbox_id]
                    self.folders[mailbox_id] = old._replace(deleted=True, time=stamp.time, sid=stamp.sid)
                case FolderSubscribe(name, subscribed):
                    self.subscriptions[name] = SubscriptionState(entry.user, name, subscribed, *stamp)
                case TreeMerge(context, folders, subscriptions):
                    self.context = {dot.origin: dot.seq for dot in context}
                    self.folders |= {folder.mailbox_id: folder for folder in folders}
                    self.subscriptions |= {subscription.name: subscription for subscription in subscriptions}
                case _:
                    raise AssertionError(f"{type(change).__name__} does not change a tree")
        self.modseq = entry.modseq
        self.context[entry.dot.origin] = entry.dot.seq

    def _check(self, entry: Entry) -> None:
        if len(entry.predecessors) < 2 and entry.modseq != self.modseq + 1:
            raise ContradictionError(f"{entry.dot} has MODSEQ {entry.modseq} on {self.modseq}")
        known = set(self.folders)
        highest = max((folder.uidvalidity for folder in self.folders.values()), default=0)
        for change in entry.changes:
            match change:
                case FolderCreate(mailbox_id, _, uidvalidity):
                    limit = max(highest, entry.stamp.ms // 1000) + UIDVALIDITY_AHEAD_MAX
                    if mailbox_id in known or not highest < uidvalidity <= limit:
                        raise ContradictionError(f"{entry.dot} creates a folder with numbers that are not its own")
                    known.add(mailbox_id)
                    highest = uidvalidity
                case FolderRename(mailbox_id) | FolderDelete(mailbox_id) if mailbox_id not in known:
                    raise ContradictionError(f"{entry.dot} changes a folder that is not there")
                case _:
                    pass


def replay_tree(entries: Iterable[Entry]) -> TreeState:
    """The state at the end of a path through the history, from a tree's first entry on."""
    state = TreeState()
    for entry in entries:
        state.apply(entry)
    return state


def merge_trees(ours: TreeState, theirs: TreeState) -> TreeState:
    """The tree that has seen both branches. Symmetric."""
    merged = TreeState(
        modseq=max(ours.modseq, theirs.modseq) + 1,
        context={
            origin: max(ours.context.get(origin, 0), theirs.context.get(origin, 0))
            for origin in ours.context.keys() | theirs.context.keys()
        },
    )
    for mailbox_id in ours.folders.keys() | theirs.folders.keys():
        sides = [tree.folders[mailbox_id] for tree in (ours, theirs) if mailbox_id in tree.folders]
        merged.folders[mailbox_id] = _join(sides)
    for name in ours.subscriptions.keys() | theirs.subscriptions.keys():
        subscriptions = [tree.subscriptions[name] for tree in (ours, theirs) if name in tree.subscriptions]
        merged.subscriptions[name] = max(subscriptions, key=lambda one: (one.time, one.sid, one.subscribed))
    _unite_names(merged)
    return merged


def tree_difference(merged: TreeState, sides: Sequence[TreeState]) -> TreeMerge:
    """What takes each of the sides to the merged tree."""
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
    return TreeMerge(
        tuple(Dot(origin, seq) for origin, seq in sorted(merged.context.items())),
        tuple(folders[mailbox_id] for mailbox_id in sorted(folders)),
        tuple(subscriptions[name] for name in sorted(subscriptions)),
    )


def _join(sides: list[FolderState]) -> FolderState:
    last = max(sides, key=lambda side: (side.time, side.sid, side))
    uidvalidity = max(side.uidvalidity for side in sides)
    return last._replace(deleted=any(side.deleted for side in sides), uidvalidity=uidvalidity)


def _unite_names(tree: TreeState) -> None:
    """One living folder for each name: the one with the lowest id, whatever the order of the sides."""
    by_name: dict[str, list[FolderState]] = {}
    for mailbox_id in sorted(tree.folders):
        folder = tree.folders[mailbox_id]
        if not folder.deleted:
            by_name.setdefault(folder.name, []).append(folder)
    highest = max((folder.uidvalidity for folder in tree.folders.values()), default=0)
    for name in sorted(by_name):
        first, *others = by_name[name]
        if others:
            highest += 1
            tree.folders[first.mailbox_id] = first._replace(uidvalidity=highest)
        for other in others:
            tree.folders[other.mailbox_id] = other._replace(deleted=True)
