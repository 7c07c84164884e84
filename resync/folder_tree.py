"""A user's folder tree as values, the application of entries to it, and the merge of two of its branches.

Folders are identified by their mailbox ids. A folder is deleted if either side deleted it; its name is that of its last
change. Two living folders of one name become one: the one with the lower id stays, with a UIDVALIDITY above all others,
and the other one is deleted, so that its mail can be moved over. The deleted one comes back if it was renamed since
then on a branch that had not seen the merge. A folder keeps its parents: a parent that would be missing is created if
no side showed the folder without it. A subscription follows its last change, and so does each annotation of a folder,
or of the account. If a merge unites two folders, the one that stays has the annotations of both. If a user deletes a
folder, its annotations go with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import pairwise, zip_longest
from typing import NamedTuple, TypeVar

from protocol.values import UID_MAX, Dot, Stamp, context_dots, context_of
from resync.entry import (
    ID_BYTES,
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
    SubscriptionState,
    TreeMerge,
    TreeRow,
)
from resync.merge import in_parts
from resync.node_annotations import can_rise_to, holders
from resync.state import RISEN_MAX, ContradictionError, joined

K = TypeVar("K", bytes, str, tuple[bytes, str])

UIDVALIDITY_STEP = RISEN_MAX + 1
"""Distance between folders' UIDVALIDITYs: merges may raise one while a new folder is created in ignorance of that."""
UIDVALIDITY_MAX = UID_MAX - RISEN_MAX
"""Highest UIDVALIDITY of a folder in the tree."""
UIDVALIDITY_AHEAD_MAX = 1 << 24
"""Limit of a new UIDVALIDITY above both the seconds since the epoch and all that the user's folders have had."""
SHARES_MAX = 16
"""Limit of shares of the UIDVALIDITYs: with so many, a user can create 150,000 folders until none is left."""
ROW_BYTES = 100
"""Octets of a row without its name and value, roughly."""
SEPARATOR = "/"
UNITED = ""
"""Mark in place of a SID: a merge, not a user, has deleted the folder, because another one has its name."""
GIVEN_UP = "-"
"""Mark in place of a SID and a name: a UIDVALIDITY that a folder had until a merge, kept like a deleted folder."""


class Share(NamedTuple):
    """One node's share of the UIDVALIDITYs: each `of`-th step of `UIDVALIDITY_STEP`, counted from 0, is that node's."""

    position: int
    of: int

    def first_at_or_above(self, least: int) -> int:
        """Return the first UIDVALIDITY of the share at or above this one, by whole steps."""
        return least + UIDVALIDITY_STEP * ((self.position - least // UIDVALIDITY_STEP) % self.of)


WHOLE_SHARE = Share(0, 1)
"""The share of a node without others, and of merges, which all nodes are to make alike."""


def share_of(sid: str, others: Iterable[str]) -> Share:
    """Return a node's share, by its place among all nodes. If there are more than `SHARES_MAX`, some have the same."""
    sids = sorted({sid, *others})
    shares = min(len(sids), SHARES_MAX)
    return Share(sids.index(sid) % shares, shares)


@dataclass(slots=True)
class TreeState:
    """A tree at one point in its history.

    `folders` are by mailbox id, `subscriptions` by name, `annotations` by mailbox id or `NOWHERE`, and name.
    """

    modseq: int = 0
    context: dict[str, int] = field(default_factory=dict)
    folders: dict[bytes, FolderState] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionState] = field(default_factory=dict)
    annotations: dict[tuple[bytes, str], AnnotationState] = field(default_factory=dict)
    _highest: int = field(init=False, repr=False, compare=False)  # of all UIDVALIDITYs

    def __post_init__(self) -> None:
        self._highest = max((folder.uidvalidity for folder in self.folders.values()), default=-UIDVALIDITY_STEP)

    @classmethod
    def of(cls, modseq: int, context: Mapping[str, int], rows: Iterable[TreeRow]) -> TreeState:
        """Return the tree with these rows. Of rows with one key, the last counts."""
        folders: dict[bytes, FolderState] = {}
        subscriptions: dict[str, SubscriptionState] = {}
        annotations: dict[tuple[bytes, str], AnnotationState] = {}
        for row in rows:
            match row:
                case FolderState():
                    folders[row.mailbox_id] = row
                case SubscriptionState():
                    subscriptions[row.name] = row
                case AnnotationState():
                    annotations[row.mailbox_id, row.name] = row
        return cls(modseq, dict(context), folders, subscriptions, annotations)

    def copy(self) -> TreeState:
        """Return a tree that does not change with this one."""
        return TreeState.of(self.modseq, self.context, self.rows())

    def rows(self) -> list[TreeRow]:
        """Return the rows of all kinds."""
        return [*self.folders.values(), *self.subscriptions.values(), *self.annotations.values()]

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
        if not all(map(self.can_annotate, {mailbox_id for mailbox_id, _ in self.annotations})):
            raise ContradictionError(f"{entry.dot} annotates a folder that does not exist or is deleted")
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
                self._drop_annotations({mailbox_id})
            case FolderSubscribe(name, subscribed):
                self.subscriptions[name] = SubscriptionState(entry.user, name, subscribed, *stamp)
            case FolderAnnotate(mailbox_id, values):
                for name, value in values:
                    state = AnnotationState(entry.user, mailbox_id, name, value, *stamp)
                    self.annotations[mailbox_id, name] = state
            case TreeMerge(context, folders, subscriptions, annotations):
                self._check_merge(entry, change)
                self.context = context_of(context)
                self.folders |= {folder.mailbox_id: folder for folder in folders}
                self._highest = max((self._highest, *(folder.uidvalidity for folder in folders)))
                self.subscriptions |= {subscription.name: subscription for subscription in subscriptions}
                self._drop_annotations({folder.mailbox_id for folder in folders if loses_annotations(folder)})
                self.annotations |= {(one.mailbox_id, one.name): one for one in annotations}
            case _:
                raise AssertionError(f"{type(change).__name__} does not change a tree")

    def can_annotate(self, mailbox_id: bytes) -> bool:
        """Return True if there may be annotations: of the account, and of a folder that no user has deleted."""
        folder = self.folders.get(mailbox_id)
        return mailbox_id == NOWHERE or (folder is not None and not loses_annotations(folder))

    def _drop_annotations(self, mailbox_ids: AbstractSet[bytes]) -> None:
        for key in [key for key in self.annotations if key[0] in mailbox_ids]:
            del self.annotations[key]

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
        if {row.user for row in merge.rows()} - {entry.user}:
            raise ContradictionError(f"{entry.dot} changes another user's folder")
        for folder in merge.folders:
            old = self.folders.get(folder.mailbox_id, folder)
            if folder.uidvalidity < old.uidvalidity or (old.deleted and old.sid != UNITED and not folder.deleted):
                raise ContradictionError(f"{entry.dot} lowers a UIDVALIDITY or brings a deleted folder back")


def is_united(folder: FolderState) -> bool:
    """Return True if a merge has taken the folder out of the tree, since another one has its name."""
    return folder.deleted and folder.sid == UNITED


def loses_annotations(folder: FolderState) -> bool:
    """Return True if a user has deleted the folder. A united one may come back, with its annotations."""
    return folder.deleted and folder.sid != UNITED


def renamed(folder: FolderState, name: str, stamp: Stamp) -> FolderState:
    """Return the folder under a new name. A united folder is renamed along with its parent and stays united."""
    return folder._replace(name=name, time=stamp.time, sid=UNITED if is_united(folder) else stamp.sid)


def uidvalidities_after(
    highest: int, can_rise_to_kept: Callable[[int], bool], share: Share = WHOLE_SHARE
) -> Iterator[int]:
    """Yield UIDVALIDITYs of the share for new folders, at last the maximum for ever.

    `highest` is the highest one that any of the user's folders has or had; `can_rise_to_kept` returns True for those
    that may become one of another server's, as no new one can.
    """
    while True:
        highest = min(share.first_at_or_above(highest + UIDVALIDITY_STEP), UIDVALIDITY_MAX)
        if highest == UIDVALIDITY_MAX or not can_rise_to_kept(highest):
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
    kept = sorted({number for side in (ours, theirs) for number in holders(side.annotations.values())})
    highest = max((folder.uidvalidity for folder in merged.folders.values()), default=0)
    uidvalidities = uidvalidities_after(highest, partial(can_rise_to, kept=kept))
    _unite_names(merged, uidvalidities)
    _keep_uidvalidities_apart(merged, (ours, theirs), uidvalidities)
    _create_parents(merged, (ours, theirs), uidvalidities)
    merged.annotations = _joined_annotations(merged, (ours, theirs))
    return merged


def tree_difference(merged: TreeState, sides: Sequence[TreeState]) -> tuple[TreeMerge, ...]:
    """Return the changes that take each side to the merged tree; several if it is too large for one."""
    folders = [merged.folders[key] for key in _differing(merged.folders, [side.folders for side in sides])]
    subscriptions = [
        merged.subscriptions[name] for name in _differing(merged.subscriptions, [side.subscriptions for side in sides])
    ]
    annotations = [
        merged.annotations[key] for key in _differing(merged.annotations, [side.annotations for side in sides])
    ]
    context = context_dots(merged.context)
    parts = zip_longest(
        in_parts(folders, _weight),
        in_parts(subscriptions, _weight),
        in_parts(annotations, lambda one: _weight(one) + len(one.value or b"")),
        fillvalue=(),
    )
    return tuple(TreeMerge(context, tuple(some), tuple(others), tuple(more)) for some, others, more in parts) or (
        TreeMerge(context, (), ()),
    )


def _weight(row: TreeRow) -> int:
    return ROW_BYTES + len(row.name.encode())


def _differing(merged: Mapping[K, object], sides: Sequence[Mapping[K, object]]) -> list[K]:
    """Return the keys of the rows that some side lacks or has differently, in order."""
    return sorted(key for key, row in merged.items() if any(side.get(key) != row for side in sides))


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


def _joined_annotations(merged: TreeState, sides: Sequence[TreeState]) -> dict[tuple[bytes, str], AnnotationState]:
    """Return the last version of each annotation. `merged` has its folders already.

    If a folder that lives on one side is united with another one, that one takes over its annotations; the united
    folder keeps them, hidden, since it may come back.
    """
    living = {folder.name: folder.mailbox_id for folder in merged.folders.values() if not folder.deleted}
    found: dict[tuple[bytes, str], AnnotationState] = {}
    for side in sides:
        for one in side.annotations.values():
            homes = {one.mailbox_id} if merged.can_annotate(one.mailbox_id) else set()
            folder = merged.folders.get(one.mailbox_id)
            if folder is not None and is_united(folder) and not side.folders[one.mailbox_id].deleted:
                homes.add(living.get(folder.name, one.mailbox_id))
            for home in homes:
                moved = one._replace(mailbox_id=home)
                found[home, one.name] = max(moved, found.get((home, one.name), moved), key=_last)
    return found


def _last(one: AnnotationState) -> tuple[object, ...]:
    return one.time, one.sid, one.value is not None, one.value or b""


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
    close |= _close_to_kept(given, sides)
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


def _close_to_kept(given: Sequence[tuple[int, bytes]], sides: Sequence[TreeState]) -> set[tuple[int, bytes]]:
    """Return the folders whose own UIDVALIDITY may become one of another server that another folder keeps."""
    kept = [item for side in sides for item in holders(side.annotations.values()).items()]
    return {
        (own, mailbox_id)
        for number, holder in kept
        for own, mailbox_id in given[
            bisect_left(given, (number - RISEN_MAX, b"")) : bisect_left(given, (number + 1, b""))
        ]
        if mailbox_id != holder
    }


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
