"""Log entries: what the history of a mailbox is made of (design sections 2 and 6).

An entry is an ordered batch of changes to one mailbox, or to one user's folder tree, which is a chain of its own
under an id that follows from the user's name. Entries name messages by UID: an entry applies only on its
predecessor, and there a UID names one placement.

Shapes: ids and GUIDs are 16 bytes, content hashes 32, times milliseconds since the epoch, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, cast

import msgpack

from protocol.values import Dot, Stamp, UidSet

ID_BYTES = 16


def tree_id(user: str) -> bytes:
    """The id of the chain that holds a user's folder tree: the same at every node, without asking anyone."""
    return blake2b(b"tree:" + user.encode(), digest_size=ID_BYTES).digest()


class MailAdd(NamedTuple):
    """A message gets a UID. Its text travels beside the entry, or is a copy of one that the mailbox's nodes have."""

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
    """A folder leaves the tree. It stays in sight as long as there is mail in it that nobody expunged."""

    mailbox_id: bytes


class FolderSubscribe(NamedTuple):
    """A name is subscribed to, or no longer."""

    name: str
    subscribed: bool


Change: TypeAlias = MailAdd | MailDel | FlagAdd | FlagDel | FolderCreate | FolderRename | FolderDelete | FolderSubscribe

_CLASSES: dict[str, type[Change]] = {
    "MAIL_ADD": MailAdd,
    "MAIL_DEL": MailDel,
    "FLAG_ADD": FlagAdd,
    "FLAG_DEL": FlagDel,
    "FOLDER_CREATE": FolderCreate,
    "FOLDER_RENAME": FolderRename,
    "FOLDER_DELETE": FolderDelete,
    "FOLDER_SUBSCRIBE": FolderSubscribe,
}
_KINDS = {change: kind for kind, change in _CLASSES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `modseq` is what the mailbox's HIGHESTMODSEQ becomes; a tree has UIDVALIDITY 0."""

    dot: Dot
    predecessors: tuple[Dot, ...]
    time: int
    modseq: int
    user: str
    mailbox_id: bytes
    uidvalidity: int
    changes: tuple[Change, ...]

    @property
    def stamp(self) -> Stamp:
        """When the entry was numbered, and by whom."""
        return Stamp(self.time, self.dot.sid)

    @property
    def is_tree(self) -> bool:
        """Whether the entry changes a folder tree rather than a mailbox."""
        return self.uidvalidity == 0

    def pack(self) -> bytes:
        """The entry without its dot, as MessagePack, for the log."""
        changes = [(_KINDS[type(change)], *(_plain(value) for value in change)) for change in self.changes]
        fields = (self.predecessors, self.time, self.modseq, self.user, self.mailbox_id, self.uidvalidity, changes)
        return cast("bytes", msgpack.packb(fields))

    @classmethod
    def unpack(cls, dot: Dot, packed: bytes) -> Entry:
        """The entry that `pack` gave."""
        predecessors, time, modseq, user, mailbox_id, uidvalidity, changes = msgpack.unpackb(packed, use_list=False)
        return cls(
            dot,
            tuple(Dot(origin, seq) for origin, seq in predecessors),
            time,
            modseq,
            user,
            mailbox_id,
            uidvalidity,
            tuple(_change(kind, values) for kind, *values in changes),
        )


def _plain(value: object) -> object:
    return value.ranges if isinstance(value, UidSet) else value


def _change(kind: str, values: list[Any]) -> Change:
    change = _CLASSES[kind]
    if change in {MailDel, FlagAdd, FlagDel}:
        values[0] = UidSet(cast("tuple[tuple[int, int], ...]", values[0]))
    return change._make(values)
