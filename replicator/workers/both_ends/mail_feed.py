"""The core's news for a door of the mailboxes and folders that its clients look at: both ends.

A door has views of its own (`FollowedViews`), which it reads from the database. From then on the core tells it each
change that it publishes. It tells a change before it answers the call that made it, so whoever waits for the answer,
and then until the views have `caught_up`, sees what it has done.

Nobody says when a view is needed no more: if a change comes for one that is gone, the door asks the core to stop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Protocol, TypeVar

from replicator.mail.folder_watch import FolderSubscription, Touched
from replicator.mail.mailstore import Folder
from replicator.mail.view import MailboxView, Message, ViewChange
from replicator.runtime.signals import Signal
from replicator.store.db.damage import Damage
from replicator.store.db.memory.folder_views import FolderViews, touched_by
from replicator.store.db.memory.view_cache import Views
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit
from replicator.workers.channel import Channel
from replicator.workers.packing import Columns, dot_of, message_of

SLICE_MESSAGES = 100
"""Messages of a change in one frame, and of a commit that a door is told of at once. It takes a millisecond or two."""

K = TypeVar("K")
S = TypeVar("S")


class Published(Protocol):
    """The store, as far as it is followed: `listeners` are called with each commit, on the event loop."""

    listeners: list[Callable[[Commit], None]]
    damage: Damage


class MailFeed:
    """The core's news for one door. `run` has to run; `close` ends it. Belongs to the event loop."""

    def __init__(self, channel: Channel, store: Published) -> None:
        self._channel = channel
        self._store = store
        self._followed: set[bytes] = set()  # mailboxes
        self._watched: set[str] = set()  # users
        self._untold: deque[ViewChange | bytes] = deque()  # a mailbox id: its view is to end
        self._has_untold = Signal()
        self._all_told = Signal()
        self._all_told.set()
        store.listeners.append(self._note)
        channel.quick_calls |= {
            "watch": self._watched.add,
            "unwatch": self._watched.discard,
            "unfollow": self._followed.discard,
        }

    def close(self) -> None:
        """Stop telling the door of changes."""
        self._store.listeners.remove(self._note)

    def follow(self, mailbox_id: bytes) -> None:
        """Tell the door of each change of a mailbox from now on."""
        self._followed.add(mailbox_id)

    async def told(self) -> None:
        """Return once the door has been told of everything that is published by now."""
        await self._all_told.wait()

    async def run(self) -> None:
        """Tell the door of changes that are too many to be told at once, until cancelled."""
        while True:
            await self._has_untold.wait()
            self._has_untold.clear()
            while self._untold:
                for _ in self._tell(self._untold[0]):
                    await self._channel.room()
                self._untold.popleft()
            self._all_told.set()

    def _note(self, commit: Commit) -> None:
        for mailbox_id in commit.retired:
            if mailbox_id in self._followed:
                self._put(mailbox_id, is_much=False)
        messages = 0
        for change in commit.changes:
            if change.mailbox_id in self._followed:
                messages += len(change.changed) + len(change.expunged)
                self._put(change, is_much=messages > SLICE_MESSAGES)
        for user, touched in touched_by(commit, self._watched).items():
            names = touched.mailbox_ids, touched.subscriptions, touched.annotated
            self._channel.tell("touched", user, *names, touched.everything)

    def _put(self, what: ViewChange | bytes, *, is_much: bool) -> None:
        if self._untold or is_much:
            self._untold.append(what)
            self._has_untold.set()
            self._all_told.clear()
            return
        for _ in self._tell(what):
            pass

    def _tell(self, what: ViewChange | bytes) -> Iterator[None]:
        if isinstance(what, bytes):
            self._channel.tell("retired", what)
            return
        begin = what.mailbox_id, what.modseq, what.uidnext, what.head
        slices = [*zip_longest(_slices(what.changed), _slices(what.expunged), fillvalue=())] or [((), ())]
        for number, (changed, expunged) in enumerate(slices, 1):
            self._channel.tell("changed", begin, changed, expunged, number == len(slices))
            yield


def _slices(values: Sequence[S]) -> Iterator[Sequence[S]]:
    return (values[start : start + SLICE_MESSAGES] for start in range(0, len(values), SLICE_MESSAGES))


class FollowedViews:
    """The views of a door, which the core's changes keep up to date. `run` has to run. Belongs to the event loop."""

    def __init__(self, channel: Channel, views: Views, folder_views: FolderViews) -> None:
        self._channel = channel
        self._views = views
        self._folder_views = folder_views
        self._opening: Counter[bytes] = Counter()
        self._watching: Counter[str] = Counter()
        self._changed: list[Message] = []  # of a change that is arriving
        self._expunged: list[int] = []
        self._arrived: deque[ViewChange | bytes] = deque()
        self._has_arrived = Signal()
        self._all_shown = Signal()
        self._all_shown.set()
        channel.quick_calls |= {"changed": self._note_change, "retired": self._put, "touched": self._note_touched}

    async def run(self) -> None:
        """Show what the core tells, until cancelled."""
        while True:
            await self._has_arrived.wait()
            self._has_arrived.clear()
            while self._arrived:
                await self._show(self._arrived[0])
                self._arrived.popleft()
            self._all_shown.set()

    async def caught_up(self) -> None:
        """Return once everything is shown of which the core has told by now."""
        await self._all_shown.wait()

    async def open(self, folder: Folder) -> MailboxView:
        """Return the live view of a mailbox. Raises MailError."""
        with _counted(self._opening, folder.mailbox_id):
            await self._channel.call("open", folder)
            await self.caught_up()
            return await self._views.get(MailboxKey.of(folder))

    async def watch(self, user: str) -> FolderSubscription:
        """Return a subscription to the user's folders that begins now. Raises MailError."""
        with _counted(self._watching, user):
            await self._channel.call("watch", user)
            return await self._folder_views.watch(user)

    async def _show(self, what: ViewChange | bytes) -> None:
        if isinstance(what, bytes):
            self._views.retire(what)
        elif what.mailbox_id in self._views:
            await self._views.apply(what)
        elif not self._opening[what.mailbox_id]:
            self._channel.tell("unfollow", what.mailbox_id)

    def _note_change(
        self,
        begin: Columns,
        changed: Sequence[Columns],
        expunged: Sequence[int],
        is_last: bool,  # noqa: FBT001 (as in the frame)
    ) -> None:
        self._changed += map(message_of, changed)
        self._expunged += expunged
        if is_last:
            mailbox_id, modseq, uidnext, head = begin
            whole = tuple(self._changed), tuple(self._expunged)
            self._changed, self._expunged = [], []
            self._put(ViewChange(mailbox_id, modseq, uidnext, *whole, dot_of(head)))

    def _put(self, what: ViewChange | bytes) -> None:
        self._arrived.append(what)
        self._has_arrived.set()
        self._all_shown.clear()

    def _note_touched(
        self,
        user: str,
        mailbox_ids: frozenset[bytes],
        subscriptions: frozenset[str],
        annotated: frozenset[bytes],
        everything: bool,  # noqa: FBT001 (as in the frame)
    ) -> None:
        if user in self._folder_views:
            touched = Touched({*mailbox_ids}, {*subscriptions}, {*annotated}, everything)
            self._folder_views.touch(user, touched)
        elif not self._watching[user]:
            self._channel.tell("unwatch", user)


@contextmanager
def _counted(counter: Counter[K], key: K) -> Iterator[None]:
    """Count the block under a key while it runs."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]
