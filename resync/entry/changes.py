"""Changes of which entries consist, and the rows of a folder tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from protocol.values import Dot, UidSet
from resync.row import Row

NOWHERE = b""
"""Value in place of a mailbox id for an annotation that belongs to the user's account, not to a folder."""


class MailAdd(NamedTuple):
    """A message gets a UID. Its body travels beside the entry, or is a copy of one that the mailbox's nodes have."""

    uid: int
    guid: bytes
    received_ms: int
    flags: tuple[str, ...]
    size_bytes: int
    content_hash: bytes
    copied: bool


class MailDel(NamedTuple):
    """Messages are expunged."""

    uids: UidSet


class FlagAdd(NamedTuple):
    """Messages get flags."""

    uids: UidSet
    flags: tuple[str, ...]


class FlagDel(NamedTuple):
    """Messages lose flags."""

    uids: UidSet
    flags: tuple[str, ...]


class Merge(NamedTuple):
    """A merge of two branches: the absolute rows of all that the heads show differently, and the GUIDs that are gone.

    A very large merge is split into several such changes, which are equal except for `rows` and `removed`.
    """

    uidnext: int
    risen: int  # amount by which merges have raised the UIDVALIDITY above the folder's own
    context: tuple[Dot, ...]  # of both heads
    rows: tuple[Row, ...]
    removed: tuple[bytes, ...]  # GUIDs that one of the heads shows and the merge does not


class Raise(NamedTuple):
    """The mailbox promises UIDs from this one on: those below it that no message has are never used.

    So mail from another server keeps its UIDs (design section 3). The entry may give any MODSEQ above the last one.
    """

    uidnext: int


class FolderCreate(NamedTuple):
    """A folder appears in the tree."""

    mailbox_id: bytes
    name: str
    uidvalidity: int


class FolderRename(NamedTuple):
    """A folder gets another name."""

    mailbox_id: bytes
    name: str


class FolderDelete(NamedTuple):
    """A folder leaves the tree. It stays visible as long as it holds mail that no client has expunged."""

    mailbox_id: bytes


class FolderSubscribe(NamedTuple):
    """A subscription to a name is set or cleared."""

    name: str
    subscribed: bool


class FolderAnnotate(NamedTuple):
    """Annotations of a folder or, with `NOWHERE`, of the account get values; None removes one. Each name comes once."""

    mailbox_id: bytes
    values: tuple[tuple[str, bytes | None], ...]


class FolderState(NamedTuple):
    """A folder as a tree shows it. `time` and `sid` are the stamp of its last change."""

    mailbox_id: bytes
    user: str
    name: str
    uidvalidity: int
    deleted: bool
    time: int
    sid: str


class SubscriptionState(NamedTuple):
    """A subscription, set or cleared, as a tree shows it."""

    user: str
    name: str
    subscribed: bool
    time: int
    sid: str


class AnnotationState(NamedTuple):
    """An annotation of a folder or, with `NOWHERE`, of the account, as a tree shows it. `value` None: it is removed."""

    user: str
    mailbox_id: bytes
    name: str
    value: bytes | None
    time: int
    sid: str


TreeRow: TypeAlias = FolderState | SubscriptionState | AnnotationState


class TreeMerge(NamedTuple):
    """A merge of two branches of a folder tree: the absolute rows of all that the heads show differently.

    A folder that is deleted loses its annotations.
    """

    context: tuple[Dot, ...]  # of both heads
    folders: tuple[FolderState, ...]
    subscriptions: tuple[SubscriptionState, ...]
    annotations: tuple[AnnotationState, ...] = ()

    @classmethod
    def of(cls, context: tuple[Dot, ...], rows: Iterable[object]) -> TreeMerge:
        """Return the merge with those of the rows that a tree has."""
        found = [*rows]
        return cls(
            context,
            tuple(row for row in found if isinstance(row, FolderState)),
            tuple(row for row in found if isinstance(row, SubscriptionState)),
            tuple(row for row in found if isinstance(row, AnnotationState)),
        )

    def rows(self) -> tuple[TreeRow, ...]:
        """Return the rows of all kinds."""
        return (*self.folders, *self.subscriptions, *self.annotations)


Change: TypeAlias = (
    MailAdd | MailDel | FlagAdd | FlagDel | Merge | Raise
    | FolderCreate | FolderRename | FolderDelete | FolderSubscribe | FolderAnnotate | TreeMerge
)  # fmt: skip
