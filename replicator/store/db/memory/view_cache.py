"""Live views of mailboxes in use: loaded once, updated by commits, dropped when least recently used.

Loading reads one snapshot, and makes the view, in a thread beside the writer. Changes published meanwhile are kept and
applied after the snapshot, so loading a huge mailbox blocks nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import trio

from replicator.mail.view import MailboxView, ViewChange
from replicator.store.db.queries import MailboxKey

MAX_IDLE_MESSAGES = 100_000  # in views that no session uses; about 0.7 KiB each
VIEW_COST = 12  # cost of an empty view, in messages: 2 KiB, and 6 KiB for its latest changes

Loader = Callable[[MailboxKey], Awaitable[MailboxView]]


class Views:
    """The views of one node. Used on the event loop only."""

    def __init__(self, load: Loader) -> None:
        self._load = load
        self._views: WeakValueDictionary[bytes, MailboxView] = WeakValueDictionary()  # all that are in use
        self._recent: OrderedDict[bytes, tuple[MailboxView, int]] = OrderedDict()  # keeps them alive; with their cost
        self._cost = 0  # in messages; each view's cost as of its last use
        self._loading: dict[bytes, list[ViewChange]] = {}
        self._loaded = trio.Condition()

    def __contains__(self, mailbox_id: bytes) -> bool:
        """Return True if the mailbox has a view here, or is being loaded."""
        return mailbox_id in self._views or mailbox_id in self._loading

    async def get(self, key: MailboxKey) -> MailboxView:
        """Return the live view of a mailbox; an empty one if no message was ever stored in it."""
        while key.mailbox_id in self._loading:
            async with self._loaded:
                await self._loaded.wait()
        view = self._views.get(key.mailbox_id) or await self._read(key)
        self._keep(view)
        return view

    async def apply(self, change: ViewChange) -> None:
        """Apply a change of a published commit. Pauses if it is large."""
        if (late := self._loading.get(change.mailbox_id)) is not None:
            late.append(change)
        if (view := self._views.get(change.mailbox_id)) is not None:
            await _apply(view, change)

    def retire(self, mailbox_id: bytes) -> None:
        """Drop the view of a mailbox that is gone or has a new UIDVALIDITY; its sessions end.

        Later calls of `get` load a new view.
        """
        if mailbox_id in self._loading:
            self._loading[mailbox_id] = []  # a new list tells `_read` that the snapshot it is reading is void
        if (view := self._views.pop(mailbox_id, None)) is not None:
            _, cost = self._recent.pop(mailbox_id, (view, 0))
            self._cost -= cost
            view.end()

    async def _read(self, key: MailboxKey) -> MailboxView:
        try:
            while True:
                late = self._loading[key.mailbox_id] = []
                view = await self._load(key)
                for change in late:  # more may come meanwhile
                    await _apply(view, change)
                if self._loading[key.mailbox_id] is late:
                    break
            self._views[key.mailbox_id] = view
            return view
        finally:
            del self._loading[key.mailbox_id]
            with trio.CancelScope(shield=True):
                async with self._loaded:
                    self._loaded.notify_all()

    def _keep(self, view: MailboxView) -> None:
        _, before = self._recent.pop(view.mailbox_id, (view, 0))
        cost = VIEW_COST + len(view.messages)
        self._recent[view.mailbox_id] = view, cost
        self._cost += cost - before
        while self._cost > MAX_IDLE_MESSAGES and len(self._recent) > 1:
            _, (_, freed) = self._recent.popitem(last=False)
            self._cost -= freed


async def _apply(view: MailboxView, change: ViewChange) -> None:
    for _ in view.apply_in_steps(change):
        await trio.lowlevel.checkpoint()
