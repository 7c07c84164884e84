"""The node's memory of changes, for a server whose mail is synced with the node's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FolderChange(NamedTuple):
    """A folder, deleted or not, and when it was created, renamed or deleted last.

    `guid`: by which Dovecots know it: one of theirs (`CoreMailStore.know_as`), or else its id. `inherited`: the GUID is
    that of a folder which a merge has united with this one, and counts as long as this one keeps its name. `head`: the
    newest entry of its mail, `ORIGIN:SEQ`; empty if it has had none. `annotated`: a number that rises when clients
    change its annotations; those of INBOX include the account's.
    """

    name: str
    mailbox_id: bytes
    uidvalidity: int  # as clients see it
    uidnext: int
    deleted: bool
    changed_ms: int
    guid: bytes
    inherited: bool
    highestmodseq: int
    head: str
    annotated: int


class LastChange(NamedTuple):
    """The last change in a folder: `head` and `annotated` of its `FolderChange`."""

    head: str
    annotated: int


class SubscriptionChange(NamedTuple):
    """A name that a user subscribes to, or once did, and when that changed last."""

    name: str
    subscribed: bool
    changed_ms: int


class Purge(NamedTuple):
    """The last removal of all that a former user of this name had.

    `uidnext`: of INBOX, as it ended; 1 if it broke off, None until then. `time`: the stamp's, of that end.
    """

    uidnext: int | None
    time: int
    changed_ms: int

    def has_removed(self, time: int) -> bool:
        """Return True if it removed what was removed at this time of a stamp: until it is over, everything."""
        return self.uidnext is None or time <= self.time


class TreeChanges(NamedTuple):
    """All of a user's folders and subscriptions, but for those that a purge has removed.

    `head`: the newest entry of the tree, as that of a folder.
    """

    folders: Sequence[FolderChange]
    subscriptions: Sequence[SubscriptionChange]
    head: str
    purge: Purge | None = None


class AnnotationChange(NamedTuple):
    """An annotation that was set, or removed (None), and when."""

    name: str
    value: bytes | None
    changed_ms: int


class FlagChange(NamedTuple):
    """A flag of a message that was set or cleared, and when."""

    flag: str
    is_set: bool
    changed_ms: int
