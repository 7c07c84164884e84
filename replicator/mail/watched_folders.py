"""A user's folders in memory, as a node shows them at one moment, and what has changed from one moment to the next.

A `FolderTree` never changes: what a commit changes becomes a new tree, made once for all who watch the user. It takes
some 400 bytes a folder, however much mail the folder has, and 150 an annotation, however large its value is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from resync.entry import NOWHERE
from resync.folder_tree import SEPARATOR

_INBOX = "INBOX"  # as in `replicator.mail.mailstore`, which stands above this module

ACCOUNT = ""
"""Name that stands for the user's account where annotations are told (RFC 5464 section 4.1)."""
_DIGEST_BYTES = 8  # two values of one annotation that are taken for the same would cost no more than a notification


class WatchedFolder(NamedTuple):
    """A folder of a `FolderTree`, without its name: where its mail is, and how much."""

    mailbox_id: bytes
    uidvalidity: int
    messages: int = 0
    unseen: int = 0
    uidnext: int = 1
    highestmodseq: int = 0
    own: int | None = None
    """See `Folder`."""

    @property
    def arrivals(self) -> tuple[bytes, int, int, int]:
        """Values that differ after a message has come or gone, or the UIDs have another meaning."""
        return self.mailbox_id, self.uidvalidity, self.messages, self.uidnext


class FolderEvent(NamedTuple):
    """A change of a name, or of a subscription to it, as it was just after the change.

    `old_name`: the folder had that name, and all folders below moved along. `implied_by`: the new name of a folder
    above, whose own event says as much. INBOX is never gone: a rename leaves it, with other mail.
    """

    name: str
    exists: bool
    subscribed: bool
    old_name: str | None = None
    implied_by: str | None = None
    of_subscription: bool = False


class AnnotationEvent(NamedTuple):
    """A change of an annotation of a folder, or of the `ACCOUNT`, as it was just after the change.

    `digest`: of the value; None if the annotation is removed.
    """

    name: str
    entry: str
    digest: bytes | None


Event: TypeAlias = FolderEvent | AnnotationEvent
Annotations: TypeAlias = Mapping[str, bytes]
"""Digests of the values of a folder's annotations, or of the account's, by the annotations' names."""


def value_digest(value: bytes) -> bytes:
    """Return the digest by which the value of an annotation is kept in memory."""
    return blake2b(value, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class FolderTree:
    """All folders of a user, with what the user has subscribed to. Immutable.

    `names`: mailbox id -> name. `children`: number of folders below a name, which may have no folder itself.
    `annotations`: mailbox id, or `NOWHERE` for the account -> its annotations, also of folders that do not show.
    """

    folders: Mapping[str, WatchedFolder] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(default_factory=dict)
    children: Mapping[str, int] = field(default_factory=dict)
    subscriptions: frozenset[str] = frozenset()
    annotations: Mapping[bytes, Annotations] = field(default_factory=dict)

    def updated(
        self,
        found: Mapping[str, WatchedFolder | None],
        subscribed: Mapping[str, bool],
        annotated: Mapping[bytes, Annotations],
    ) -> TreeUpdate:
        """Return the tree in which these names have these folders (None: no folder), and these subscriptions.

        `annotated`: mailbox id, or `NOWHERE` for the account -> all annotations that it has, maybe none.
        Takes time in proportion to the tree, so it is for threads.
        """
        changed = {name: now for name, now in found.items() if self.folders.get(name) != now}
        folders = {**self.folders, **{name: now for name, now in changed.items() if now is not None}}
        for name, now in changed.items():
            if now is None:
                del folders[name]
        toggled = {name for name, now in subscribed.items() if (name in self.subscriptions) != now}
        moved = _has_moved(self, changed)
        tree = FolderTree(
            folders,
            {now.mailbox_id: name for name, now in folders.items()} if moved else self.names,
            _children(folders) if moved else self.children,
            self.subscriptions ^ toggled,
            self._with_annotations(annotated),
        )
        renames = _renames(self, tree, changed) if moved else {}
        events: tuple[Event, ...] = (
            *_name_events(self, tree, changed, renames),
            *_subscription_events(tree, toggled),
            *_annotation_events(self, tree, {*changed, *_names_of(tree, annotated)}, renames),
        )
        return TreeUpdate(tree, events, *_message_changes(self, changed, renames))

    def _with_annotations(self, annotated: Mapping[bytes, Annotations]) -> Mapping[bytes, Annotations]:
        if not annotated:
            return self.annotations
        return {key: annotations for key, annotations in {**self.annotations, **annotated}.items() if annotations}

    def has(self, name: str) -> bool:
        """Return True if there is such a folder; the account is always there."""
        return name == ACCOUNT or name in self.folders

    def annotations_at(self, name: str) -> Annotations:
        """Return the annotations of the folder of this name, or of the `ACCOUNT`; none if there is no such folder."""
        if name == ACCOUNT:
            return self.annotations.get(NOWHERE, {})
        folder = self.folders.get(name)
        return self.annotations.get(folder.mailbox_id, {}) if folder is not None else {}


class TreeUpdate(NamedTuple):
    """A step from one tree to the next. `arrivals`: names of folders to or from which messages came or went.

    `flags`: names of folders of which only flags have changed.
    """

    tree: FolderTree
    events: tuple[Event, ...] = ()
    arrivals: Sequence[str] = ()
    flags: Sequence[str] = ()


# ---- what has changed from one tree to the next ------------------------------------------------------------------

_Changed: TypeAlias = Mapping[str, WatchedFolder | None]


def _has_moved(before: FolderTree, changed: _Changed) -> bool:
    """Return True if a folder has come or gone, or has another mailbox."""
    return any(
        now is None or (was := before.folders.get(name)) is None or was.mailbox_id != now.mailbox_id
        for name, now in changed.items()
    )


def _children(folders: Mapping[str, WatchedFolder]) -> dict[str, int]:
    children: dict[str, int] = {}
    for name in folders:
        for parent in parents(name):
            children[parent] = children.get(parent, 0) + 1
    return children


def parents(name: str) -> Iterator[str]:
    """Yield the names above this one, the highest first."""
    at = name.find(SEPARATOR)
    while at >= 0:
        yield name[:at]
        at = name.find(SEPARATOR, at + 1)


def _renames(before: FolderTree, after: FolderTree, changed: _Changed) -> dict[str, str]:
    """Return new name -> old name of folders whose move a client can follow by these two names alone.

    Such a client moves all that it knows below the old name, so nothing may stay there, and everything below has to
    have moved along. Other moves look like a folder that goes and one that comes.
    """
    moved = {}
    for new, now in changed.items():
        old = None if now is None or new in before.folders else before.names.get(now.mailbox_id)
        if old is not None and (old not in after.folders or old == _INBOX):
            moved[new] = old
    if not moved:
        return {}
    names_before, names_after = sorted(before.folders), sorted(after.folders)

    def is_whole(new: str, old: str) -> bool:
        if old == _INBOX:
            return True
        below = _below(names_before, old)
        return not _below(names_after, old) and all(moved.get(new + name.removeprefix(old)) == name for name in below)

    return {new: old for new, old in moved.items() if is_whole(new, old)}


def _below(names: Sequence[str], parent: str) -> Sequence[str]:
    """Return the names below this one, of names in their order."""
    first = bisect_left(names, parent + SEPARATOR)
    return names[first : bisect_left(names, parent + chr(ord(SEPARATOR) + 1), first)]


def _name_events(
    before: FolderTree, after: FolderTree, changed: _Changed, renames: Mapping[str, str]
) -> Iterator[FolderEvent]:
    """Yield renames, parents first, then names that are gone, then those that have come."""
    left = set(renames.values())
    for new in sorted(renames):
        old = renames[new]
        above = ((parent, renames.get(parent)) for parent in reversed([*parents(new)]))
        implied_by = next(
            (to for to, of in above if of not in {None, _INBOX} and old == f"{of}{new.removeprefix(to)}"), None
        )
        is_subscribed = new in after.subscriptions
        yield FolderEvent(new, exists=True, subscribed=is_subscribed, old_name=old, implied_by=implied_by)
    for name in sorted(changed):
        is_here = name in after.folders
        if is_here != (name in before.folders) and name not in renames and name not in left:
            yield FolderEvent(name, is_here, name in after.subscriptions)


def _subscription_events(tree: FolderTree, toggled: set[str]) -> Iterator[FolderEvent]:
    for name in sorted(toggled):
        yield FolderEvent(name, name in tree.folders, name in tree.subscriptions, of_subscription=True)


def _names_of(tree: FolderTree, keys: Iterable[bytes]) -> Iterator[str]:
    """Yield the names of these mailboxes, as far as they show, and of the account."""
    for key in keys:
        if key == NOWHERE:
            yield ACCOUNT
        elif (name := tree.names.get(key)) is not None:
            yield name


def _annotation_events(
    before: FolderTree, after: FolderTree, names: Iterable[str], renames: Mapping[str, str]
) -> Iterator[AnnotationEvent]:
    """Yield what has changed under these names, for a client that follows renames.

    A folder that has come has all its annotations from now on; those of one that is gone are gone without a word.
    """
    for name in sorted(names):
        now, was = after.annotations_at(name), before.annotations_at(renames.get(name, name))
        for entry in sorted(now.keys() | was.keys()) if now != was and after.has(name) else ():
            if now.get(entry) != was.get(entry):
                yield AnnotationEvent(name, entry, now.get(entry))


def _message_changes(before: FolderTree, changed: _Changed, renames: Mapping[str, str]) -> tuple[list[str], list[str]]:
    arrivals, flags = list[str](), list[str]()
    for name in sorted(changed):
        now, was = changed[name], before.folders.get(renames.get(name, name))
        if now is not None and now != was:
            (arrivals if was is None or now.arrivals != was.arrivals else flags).append(name)
    return arrivals, flags
