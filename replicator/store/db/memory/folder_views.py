"""Live folders of the users who are watched: read once for each, and again what commits may have changed.

Reading goes on in threads, one at a time for each user, for whichever subscriber asks first. What is committed
meanwhile is read next, all of it at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from functools import partial

from replicator.mail.folder_watch import TOUCHED_MAX, FolderSubscription, FolderView, Touched
from replicator.mail.watched_folders import FolderTree, TreeUpdate, WatchedFolder, value_digest
from replicator.store.db import queries
from replicator.store.db.transaction import Commit
from resync.entry import Entry, FolderAnnotate, FolderCreate, FolderDelete, FolderRename, FolderSubscribe
from resync.node_annotations import holders_in

Read = Callable[[Callable[[sqlite3.Connection], TreeUpdate]], Awaitable[TreeUpdate]]


class FolderViews:
    """The watched users of one node. Used on the event loop only."""

    def __init__(self, read: Read) -> None:
        """`read`: runs a query beside the writer."""
        self._read = read
        self._views: dict[str, FolderView] = {}

    async def watch(self, user: str) -> FolderSubscription:
        """Return a subscription that begins now; the caller closes it. Raises MailError."""
        view = self._views.get(user)
        if view is None:
            view = self._views[user] = FolderView(partial(self._look, user))
        subscription = FolderSubscription(view, partial(self._closed, user, view))
        try:
            await subscription.take()
        except BaseException:
            subscription.close()
            raise
        return subscription

    def __contains__(self, user: str) -> bool:
        """Return True if somebody watches the user's folders."""
        return user in self._views

    def note(self, commit: Commit) -> None:
        """Note what a published commit may have changed."""
        for user, touched in touched_by(commit, self._views.keys()).items():
            self.touch(user, touched)

    def touch(self, user: str, touched: Touched) -> None:
        """Note what may have changed of a user's folders, if somebody watches them."""
        if (view := self._views.get(user)) is not None:
            view.touch(touched)

    async def _look(self, user: str, before: FolderTree, touched: Touched) -> TreeUpdate:
        return await self._read(partial(_update, user=user, before=before, touched=touched))

    def _closed(self, user: str, view: FolderView) -> None:
        if not view.subscribers and self._views.get(user) is view:
            del self._views[user]


def touched_by(commit: Commit, users: AbstractSet[str]) -> dict[str, Touched]:
    """Return what a commit may have changed of the folders of these users, of whom it has changed any."""
    touched = {user: Touched(everything=True) for user in commit.mended & users}
    for entry in commit.applied if users else ():
        if entry.user in users:
            touched.setdefault(entry.user, Touched()).add(_touched_by(entry))
    return touched


def _touched_by(entry: Entry) -> Touched:
    """Return what an entry may have changed of its user's folders."""
    if not entry.is_tree:
        return Touched({entry.mailbox_id})
    touched = Touched(everything=len(entry.changes) > TOUCHED_MAX)
    for change in entry.changes[: 0 if touched.everything else None]:
        match change:
            case FolderCreate(mailbox_id) | FolderRename(mailbox_id):
                touched.mailbox_ids.add(mailbox_id)
            case FolderDelete(mailbox_id):  # it may still show, if mail is in it
                touched.mailbox_ids.add(mailbox_id)
                touched.annotated.add(mailbox_id)
            case FolderAnnotate(mailbox_id, values):
                touched.annotated.add(mailbox_id)
                touched.mailbox_ids |= {holder for one in values for holder in holders_in(mailbox_id, *one)}
            case FolderSubscribe(name):
                touched.subscriptions.add(name)
            case _:
                touched.everything = True
    return touched


def _update(connection: sqlite3.Connection, user: str, before: FolderTree, touched: Touched) -> TreeUpdate:
    """Read what may have changed, from one snapshot, and return the step to it."""
    connection.execute("BEGIN")
    try:
        if touched.everything:
            found, subscribed = _everything(connection, user, before)
            annotated = {key: dict[str, bytes]() for key in before.annotations} | _digests(connection, user)
        else:
            found = _folders_of(connection, user, before, touched.mailbox_ids)
            subscribed = {name: queries.is_subscribed(connection, user, name) for name in touched.subscriptions}
            annotated = {key: _digests(connection, user, key).get(key, {}) for key in touched.annotated}
    finally:
        connection.execute("COMMIT")
    return before.updated(found, subscribed, annotated)


def _everything(
    connection: sqlite3.Connection, user: str, before: FolderTree
) -> tuple[dict[str, WatchedFolder | None], dict[str, bool]]:
    subscriptions = queries.subscriptions(connection, user)
    found = {**dict.fromkeys(before.folders), **queries.watched_folders(connection, user)}
    return found, {name: name in subscriptions for name in subscriptions | before.subscriptions}


def _folders_of(
    connection: sqlite3.Connection, user: str, before: FolderTree, mailbox_ids: set[bytes]
) -> dict[str, WatchedFolder | None]:
    """Return what now is under the names that these mailboxes have or had: another one may have come to light there."""
    names = {before.names.get(mailbox_id) for mailbox_id in mailbox_ids}
    names |= {queries.folder_name(connection, mailbox_id) for mailbox_id in mailbox_ids}
    return {name: queries.watched_folder(connection, user, name) for name in names if name is not None}


def _digests(
    connection: sqlite3.Connection, user: str, mailbox_id: bytes | None = None
) -> dict[bytes, dict[str, bytes]]:
    """Return digests of the values of a user's annotations, by mailbox ids and names: of all, or of one mailbox."""
    query = f"SELECT mailbox_id, name, value FROM annotation WHERE user = ? AND {queries.OF_CLIENTS}"
    if mailbox_id is None:
        rows = connection.execute(query, (user,))
    else:
        rows = connection.execute(f"{query} AND mailbox_id = ?", (user, mailbox_id))
    digests: dict[bytes, dict[str, bytes]] = {}
    for key, name, value in rows:  # one value at a time is in memory
        digests.setdefault(key, {})[name] = value_digest(value)
    return digests
