"""Folders that clients of this node use, in memory: a delivery does not look for its folder in the database."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet

from replicator.mail.mailstore import Folder
from replicator.store.db.transaction import Commit
from resync.entry import Entry, FolderCreate

FOLDERS_IN_MEMORY = 10_000


class FolderCache:
    """Folders by user and name; those of the users who were asked for least lately go first.

    Belongs to the event loop. `changes` counts changes of trees: a folder that was read before one may be another now.
    """

    def __init__(self, origin: str) -> None:
        """`origin` names the entries that this run of the node numbers."""
        self.changes = 0
        self._origin = origin
        self._folders: OrderedDict[str, dict[str, Folder]] = OrderedDict()
        self._size = 0

    def get(self, user: str, name: str) -> Folder | None:
        """Return the folder, if it is remembered."""
        known = self._folders.get(user)
        if known is None or name not in known:
            return None
        self._folders.move_to_end(user)
        return known[name]

    def remember(self, folder: Folder, changes: int) -> None:
        """Remember a folder that was read after so many changes, unless there was one since."""
        if changes == self.changes:
            self._put(folder)

    def forget(self, user: str) -> None:
        """Forget the user's folders."""
        self._size -= len(self._folders.pop(user, ()))

    def note(self, commit: Commit) -> None:
        """Forget folders that a published commit may have changed; remember those that this node made with mail."""
        begun = {entry.mailbox_id for entry in commit.applied if not entry.predecessors and not entry.is_merge}
        for entry in commit.applied:
            if entry.is_tree:
                self.changes += 1
                self.forget(entry.user)
                if entry.dot.origin == self._origin:
                    for folder in _first_folders(entry, begun):
                        self._put(folder)
        if commit.retired:
            self.changes += 1
            self._forget_mailboxes(set(commit.retired))

    def _forget_mailboxes(self, mailbox_ids: set[bytes]) -> None:
        gone = [
            user
            for user, known in self._folders.items()
            if any(folder.mailbox_id in mailbox_ids for folder in known.values())
        ]
        for user in gone:
            self.forget(user)

    def _put(self, folder: Folder) -> None:
        known = self._folders.setdefault(folder.user, {})
        self._size += folder.name not in known
        known[folder.name] = folder
        self._folders.move_to_end(folder.user)
        while self._size > FOLDERS_IN_MEMORY:
            _, gone = self._folders.popitem(last=False)
            self._size -= len(gone)


def _first_folders(entry: Entry, begun: AbstractSet[bytes]) -> list[Folder]:
    """Return those folders of a tree that begins with this entry whose mailboxes begin with it.

    Merges may have raised the UIDVALIDITY of a mailbox that is older than its tree: nodes create lost folders again.
    """
    created = [change for change in entry.changes if isinstance(change, FolderCreate)]
    if entry.predecessors or len(created) < len(entry.changes):
        return []
    return [
        Folder(entry.user, change.name, change.mailbox_id, change.uidvalidity)
        for change in created
        if change.mailbox_id in begun
    ]
