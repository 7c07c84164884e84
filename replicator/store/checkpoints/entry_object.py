"""An entry as an object: one frame for each change (format: `container`); the entry's header travels on the link.

A reader trusts neither the object nor the node that named it: each change is checked as if it had come over a link, and
the digest in the header covers the whole entry.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.parser import terminal
from protocol.values import Dot, UidSet
from replicator.store.checkpoints.container import ContainerKind, Unsealer, seal
from resync.entry import (
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Raise,
    checked,
    pack_change,
    unpack_change,
)

_TYPES: dict[type, tuple[type, ...]] = {
    MailAdd: (int, bytes, int, tuple, int, bytes, bool),
    MailDel: (UidSet,),
    FlagAdd: (UidSet, tuple),
    FlagDel: (UidSet, tuple),
    Raise: (int,),
    FolderCreate: (bytes, str, int),
    FolderRename: (bytes, str),
    FolderDelete: (bytes,),
    FolderSubscribe: (str, bool),
}
"""Field types of the changes other than merges and FolderAnnotate, which are checked as they are unpacked."""


def entries_of(cluster: str) -> str:
    """Return the prefix of the names of all entries of a cluster."""
    return f"{cluster}/entries"


def entry_name(cluster: str, dot: Dot) -> str:
    """Return the object's name: `CLUSTER/entries/ORIGIN/SEQ`."""
    return f"{entries_of(cluster)}/{dot.origin}/{dot.seq}"


def dot_of(name: str) -> Dot | None:
    """Return the dot in a name from `entry_name`, or None for any other name."""
    _, origin, seq = name.rsplit("/", 2) if name.count("/") > 1 else ("", "", "")
    return Dot(origin, int(seq)) if seq.isascii() and seq.isdecimal() else None


def write_entry(entry: Entry) -> Iterator[bytes]:
    """Yield the object in pieces. Raises ValueError for a change that is too large to be read again."""
    return seal(ContainerKind.ENTRY, map(pack_change, entry.changes))


class EntryReader:
    """The reader of one object: `receive` its bytes in order, then `changes`. Raises UnreadableError."""

    def __init__(self, name: str, max_changes: int, max_bytes: int) -> None:
        self._sealed = Unsealer(name, ContainerKind.ENTRY)
        self._changes: list[Change] = []
        self._changes_left, self._bytes_left = max_changes, max_bytes

    def receive(self, data: bytes) -> None:
        """Read the next bytes."""
        for frame in self._sealed.receive(data):
            self._changes_left -= 1
            self._bytes_left -= len(frame)
            if self._changes_left < 0 or self._bytes_left < 0:
                raise self._sealed.refusal("it is larger than its entry")
            try:
                self._changes.append(_checked(unpack_change(frame)))
            except (TypeError, ValueError) as error:
                raise self._sealed.refusal(str(error)) from None

    def changes(self) -> tuple[Change, ...]:
        """End the object, and return the entry's changes."""
        self._sealed.finish()
        return tuple(self._changes)


def _checked(change: Change) -> Change:
    """Check a change. Raises TypeError or ValueError for values that no command on the wire could have."""
    types = _TYPES.get(type(change))
    if types is not None:
        checked(tuple(change), *types)
    match change:
        case MailAdd(flags=flags):
            _check_flags(flags)
        case MailDel(uids):
            _check_ranges(uids)
        case FlagAdd(uids, flags) | FlagDel(uids, flags):
            _check_ranges(uids)
            _check_flags(flags)
    return change


def _check_ranges(uids: UidSet) -> None:
    for one in checked(uids.ranges, *(tuple for _ in uids.ranges)):
        checked(one, int, int)


def _check_flags(flags: tuple[str, ...]) -> None:
    for flag in checked(flags, *(str for _ in flags)):
        if terminal("FLAG").fullmatch(flag) is None:
            raise ValueError(f"{flag[:80]!r} is not a flag")
