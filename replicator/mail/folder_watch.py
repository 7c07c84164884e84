"""Live folders of a user at this node, and who watches them.

Sessions do not poll: each has a `FolderSubscription`, which remembers up to where its client has been told. What comes
after that is kept once for all of them: for counters the time of each folder's last change, for names, subscriptions
and annotations the changes themselves, as many as `EVENTS_KEPT`. Whoever lags further behind is told that it has missed
some. So a slow client costs no memory, and a commit as much work as it has changes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

import trio

from replicator.mail.watched_folders import Event, FolderTree, TreeUpdate
from replicator.runtime.signals import Signal

EVENTS_KEPT = 100_000
"""Limit of changes of names, subscriptions and annotations kept for sessions that lag; about 150 bytes each. All
folders may move at once, and be seen to."""

TOUCHED_MAX = 500
"""Changed folders, subscriptions and sets of annotations that are looked at singly; to read all of the user's takes no
longer than for more."""


@dataclass(slots=True)
class Touched:
    """Names that commits may have changed since the tree was looked at. `everything`: more than is worth counting.

    `annotated`: mailboxes, or `NOWHERE` for the account, whose annotations may have changed.
    """

    mailbox_ids: set[bytes] = field(default_factory=set)
    subscriptions: set[str] = field(default_factory=set)
    annotated: set[bytes] = field(default_factory=set)
    everything: bool = False

    def __bool__(self) -> bool:
        return self.everything or self._count > 0

    def add(self, other: Touched) -> None:
        """Add what another one holds."""
        self.mailbox_ids |= other.mailbox_ids
        self.subscriptions |= other.subscriptions
        self.annotated |= other.annotated
        self.everything = self.everything or other.everything
        if self.everything or self._count > TOUCHED_MAX:
            self.mailbox_ids, self.subscriptions, self.annotated, self.everything = set(), set(), set(), True

    @property
    def _count(self) -> int:
        return len(self.mailbox_ids) + len(self.subscriptions) + len(self.annotated)


Look: TypeAlias = Callable[[FolderTree, Touched], Awaitable[TreeUpdate]]
"""Reads what may have changed, and returns the step to the tree as it is now. Raises MailError."""


@dataclass(slots=True)
class FolderChanges:
    """Changes since the last call of `take`. `tree` is the present one.

    If `missed`, there were too many events to keep, and `events` lacks all of them.
    """

    tree: FolderTree
    events: Sequence[Event] = ()
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
        self._steps: deque[tuple[int, tuple[Event, ...]]] = deque()
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
