"""A user's folders in memory, as this node shows them now, and who watches them.

A `FolderTree` never changes: what a commit changes becomes a new tree, made once for all who watch the user. It takes
some 400 bytes a folder, however much mail the folder has. Sessions do not poll: each has a `FolderSubscription`, which
remembers up to where its client has been told. What comes after that is kept once for all of them: for counters the
time of each folder's last change, for names the changes themselves, as many as `EVENTS_KEPT`. Whoever lags further
behind is told that it has missed some. So a slow client costs no memory, and a commit as much work as it has changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

import trio

from replicator.runtime.signals import Signal
from resync.folder_tree import SEPARATOR

_INBOX = "INBOX"  # as in `replicator.mailstore`, which stands above this module

EVENTS_KEPT = 100_000
"""Limit of changes of names and subscriptions kept for sessions that lag; about 150 bytes each. All folders may move at
once, and be seen to."""

TOUCHED_MAX = 500
"""Folders and subscriptions that are looked at singly; to read all of the user's takes no longer than for more."""


class WatchedFolder(NamedTuple):
    """A folder of a `FolderTree`, without its name: where its mail is, and how much."""

    mailbox_id: bytes
    uidvalidity: int
    messages: int = 0
    unseen: int = 0
    uidnext: int = 1
    highestmodseq: int = 0

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


@dataclass(frozen=True, slots=True)
class FolderTree:
    """All folders of a user, with what the user has subscribed to. Immutable.

    `names`: mailbox id -> name. `children`: number of folders below a name, which may have no folder itself.
    """

    folders: Mapping[str, WatchedFolder] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(default_factory=dict)
    children: Mapping[str, int] = field(default_factory=dict)
    subscriptions: frozenset[str] = frozenset()

    def updated(self, found: Mapping[str, WatchedFolder | None], subscribed: Mapping[str, bool]) -> TreeUpdate:
        """Return the tree in which these names have these folders (None: no folder), and these subscriptions.

        Takes time in proportion to the tree, so it is for threads.
        """
        changed = {name: now for name, now in found.items() if self.folders.get(name) != now}
        folders = {**self.folders, **{name: now for name, now in changed.items() if now is not None}}
        for name, now in changed.items():
            if now is None:
                del folders[name]
        toggled = {name for name, now in subscribed.items() if (name in self.subscriptions) != now}
        subscriptions = self.subscriptions ^ toggled
        moved = any((name in self.folders) != (name in folders) for name in changed) or any(
            now is not None and self.folders[name].mailbox_id != now.mailbox_id for name, now in changed.items()
        )
        tree = FolderTree(
            folders,
            {now.mailbox_id: name for name, now in folders.items()} if moved else self.names,
            _children(folders) if moved else self.children,
            subscriptions,
        )
        renames = _renames(self, tree, changed) if moved else {}
        events = (*_name_events(self, tree, changed, renames), *_subscription_events(tree, toggled))
        return TreeUpdate(tree, events, *_message_changes(self, changed, renames))


class TreeUpdate(NamedTuple):
    """A step from one tree to the next. `arrivals`: names of folders to or from which messages came or went.

    `flags`: names of folders of which only flags have changed.
    """

    tree: FolderTree
    events: tuple[FolderEvent, ...] = ()
    arrivals: Sequence[str] = ()
    flags: Sequence[str] = ()


# ---- what has changed from one tree to the next ------------------------------------------------------------------

_Changed: TypeAlias = Mapping[str, WatchedFolder | None]


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


def _message_changes(before: FolderTree, changed: _Changed, renames: Mapping[str, str]) -> tuple[list[str], list[str]]:
    arrivals, flags = list[str](), list[str]()
    for name in sorted(changed):
        now, was = changed[name], before.folders.get(renames.get(name, name))
        if now is not None and now != was:
            (arrivals if was is None or now.arrivals != was.arrivals else flags).append(name)
    return arrivals, flags


# ---- who watches -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Touched:
    """Names that commits may have changed since the tree was looked at. `everything`: more than is worth counting."""

    mailbox_ids: set[bytes] = field(default_factory=set)
    subscriptions: set[str] = field(default_factory=set)
    everything: bool = False

    def __bool__(self) -> bool:
        return self.everything or bool(self.mailbox_ids or self.subscriptions)

    def add(self, other: Touched) -> None:
        """Add what another one holds."""
        self.mailbox_ids |= other.mailbox_ids
        self.subscriptions |= other.subscriptions
        self.everything = self.everything or other.everything
        if self.everything or len(self.mailbox_ids) + len(self.subscriptions) > TOUCHED_MAX:
            self.mailbox_ids, self.subscriptions, self.everything = set(), set(), True


Look: TypeAlias = Callable[[FolderTree, Touched], Awaitable[TreeUpdate]]
"""Reads what may have changed, and returns the step to the tree as it is now. Raises MailError."""


@dataclass(slots=True)
class FolderChanges:
    """Changes since the last call of `take`. `tree` is the present one.

    If `missed`, there were too many changes of names to keep, and `events` lacks all of them.
    """

    tree: FolderTree
    events: Sequence[FolderEvent] = ()
    arrivals: Sequence[str] = ()
    flags: Sequence[str] = ()
    missed: bool = False


class _Times(NamedTuple):
    """Positions of a folder's last changes."""

    arrivals: int = 0
    flags: int = 0


class FolderView:
    """The live folders of one user at this node. Belongs to the event loop."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._lock = trio.Lock()
        self._touched = Touched(everything=True)
        self._tree = FolderTree()
        self._position = 0  # number of steps so far
        self._steps: deque[tuple[int, tuple[FolderEvent, ...]]] = deque()
        self._events = 0  # number of events in the steps
        self._complete_after = 0  # steps up to this position are not all kept
        self._changed: OrderedDict[str, _Times] = OrderedDict()  # by name; the last change last
        self.subscribers: set[FolderSubscription] = set()

    def touch(self, touched: Touched) -> None:
        """Note what a commit may have changed, and wake the subscribers. Called by the store."""
        self._touched.add(touched)
        for subscriber in self.subscribers:
            subscriber.wake()

    async def refresh(self) -> None:
        """Show what has changed, if nobody has done that yet. Safe to cancel. Raises MailError."""
        async with self._lock:
            if not self._touched:
                return
            touched, self._touched = self._touched, Touched()
            try:
                update = await self._look(self._tree, touched)
            except BaseException:
                self.touch(touched)
                raise
            self._show(update)

    @property
    def position(self) -> int:
        """Number of the last step."""
        return self._position

    @property
    def tree(self) -> FolderTree:
        """The folders now."""
        return self._tree

    def since(self, position: int) -> FolderChanges:
        """Return what has changed after a position."""
        events = [*chain.from_iterable(events for at, events in self._steps if at > position)]
        arrivals, flags = list[str](), list[str]()
        for name, times in reversed(self._changed.items()):
            if times.arrivals > position:
                arrivals.append(name)
            elif times.flags > position:
                flags.append(name)
            else:
                break
        return FolderChanges(self._tree, events, arrivals[::-1], flags[::-1], position < self._complete_after)

    def forget(self) -> None:
        """Drop what all subscribers have taken."""
        taken = min((subscriber.position for subscriber in self.subscribers), default=self._position)
        if taken == self._position:  # at once: there may be many
            self._steps.clear()
            self._changed.clear()
            self._events = 0
            return
        while self._steps and self._steps[0][0] <= taken:
            self._events -= len(self._steps.popleft()[1])
        while self._changed and max(next(iter(self._changed.values()))) <= taken:
            self._changed.popitem(last=False)

    def _show(self, update: TreeUpdate) -> None:
        is_first, self._tree = not self._position, update.tree
        self._position += 1
        if is_first:
            return
        for name in update.flags:
            self._changed[name] = self._changed.pop(name, _Times())._replace(flags=self._position)
        for name in update.arrivals:
            self._changed[name] = self._changed.pop(name, _Times())._replace(arrivals=self._position)
        if update.events:
            self._steps.append((self._position, update.events))
            self._events += len(update.events)
        while self._events > EVENTS_KEPT:
            self._complete_after, gone = self._steps.popleft()
            self._events -= len(gone)


class FolderSubscription:
    """Changes of a user's folders since the last call of `take`. `close` ends it."""

    def __init__(self, view: FolderView, on_close: Callable[[], None]) -> None:
        self._view = view
        self._on_close = on_close
        self._wakeup = Signal()
        self.position = view.position
        view.subscribers.add(self)

    def close(self) -> None:
        """End the subscription. Harmless when repeated."""
        self._view.subscribers.discard(self)
        self._view.forget()
        self._on_close()

    @property
    def tree(self) -> FolderTree:
        """The folders as they were when somebody last looked."""
        return self._view.tree

    def wake(self) -> None:
        """Wake the subscriber. Called by the view."""
        self._wakeup.set()

    async def wait(self) -> None:
        """Return once something may have changed. Safe to cancel."""
        await self._wakeup.wait()

    async def take(self) -> FolderChanges:
        """Return what has changed since the last call. Safe to cancel: then nothing is taken. Raises MailError."""
        self._wakeup.clear()
        try:
            await self._view.refresh()
        except BaseException:
            self._wakeup.set()
            raise
        changes = self._view.since(self.position)
        self.position = self._view.position
        self._view.forget()
        return changes
