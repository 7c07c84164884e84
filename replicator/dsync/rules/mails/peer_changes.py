"""The peer's changes: each takes 32 bytes, where it would take 250 as an object, and many are in a scratch file."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from replicator.dsync.rules.mails.ascending import AscendingTexts
from replicator.dsync.wire.items import ChangeType, MailChange
from replicator.mail.rows import KEY_BYTES, Rows
from replicator.mail.scratch import Scratch

_PACKED = struct.Struct("<I16sQI")  # UID, GUID, MODSEQ, and where the rest is in `_alike`


class PeerChange(NamedTuple):
    """A change at the peer, with the mail's GUID here: 16 bytes; empty if the peer has told none.

    The other fields are those of `MailChange`.
    """

    type: ChangeType
    uid: int
    guid: bytes
    modseq: int
    flags: frozenset[str]
    added: frozenset[str]
    removed: frozenset[str]


_Alike = tuple[ChangeType, bool, frozenset[str], frozenset[str], frozenset[str]]
"""Values that many changes share, kept in memory once: the type, True if there is a GUID, and flags."""


class SavedMail(NamedTuple):
    """A mail that is there at the peer, with its GUID here."""

    uid: int
    guid: bytes


class PeerChanges:
    """Changes, ascending by UID. `names`: GUIDs that the peer writes in another way than this side, by UID.

    With a scratch file, what is added or read may raise DiskFullError or UnavailableError.
    """

    def __init__(self, scratch: Scratch | None = None) -> None:
        self.scratch = scratch
        self.clear()

    def add(self, change: MailChange, guid: bytes) -> None:
        """Add the next change, whose mail has this GUID here."""
        kind, uid, name, modseq, flags, added, removed, _ = change
        alike = kind, bool(guid), flags, added, removed
        place = self._places.get(alike)
        if place is None:
            place = self._places[alike] = len(self._alike)
            self._alike.append(alike)
        self._rows.add(_PACKED.pack(uid, guid, modseq, place))
        if name != guid.hex():
            self.names.add(uid, name)

    def clear(self) -> None:
        """Forget all."""
        self.names = AscendingTexts(self.scratch)
        self._rows = Rows(_PACKED.size, self.scratch)
        self._alike: list[_Alike] = []
        self._places: dict[_Alike, int] = {}

    def set_guid(self, at: int, guid: bytes) -> None:
        """Give the mail of the change at a position another GUID."""
        self._rows.overwrite(at, KEY_BYTES, guid)

    def find(self, uid: int) -> PeerChange | None:
        """Return the change of this UID."""
        at = self._rows.first_at(uid)
        change = self[at] if at < len(self) else None
        return change if change is not None and change.uid == uid else None

    def position(self, uid: int) -> int:
        """Return the position of the change of this UID, which is there. Raises KeyError."""
        at = self._rows.first_at(uid)
        if at == len(self) or self[at].uid != uid:
            raise KeyError(uid)
        return at

    def by_uid(self, uid: int) -> PeerChange:
        """Return the change of this UID, which is there. Raises KeyError."""
        return self[self.position(uid)]

    def uids(self) -> Iterator[int]:
        """Yield the UIDs of all changes, ascending."""
        return (uid for uid, *_ in self._unpacked())

    def saves_above(self, uid: int) -> Collection[SavedMail]:
        """Return the mails that are there above this UID."""
        return _Saves(self._rows, self._are_there(), self._rows.first_at(uid + 1))

    def saved_guids(self) -> Iterator[bytes]:
        """Yield the GUIDs of the mails that are there."""
        are_there = self._are_there()
        return (guid for _, guid, _, place in self._unpacked() if are_there[place])

    def uids_of(self, guid: bytes) -> Iterator[int]:
        """Yield the UIDs of the changes of a GUID. This looks through all."""
        return (self[at].uid for at in self._rows.search(guid, KEY_BYTES, 0, len(self)))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[PeerChange]:
        return map(self._change, self._unpacked())

    def __getitem__(self, at: int) -> PeerChange:
        return self._change(_PACKED.unpack(self._rows.row(at)))

    def _unpacked(self) -> Iterator[tuple[int, bytes, int, int]]:
        return chain.from_iterable(map(_PACKED.iter_unpack, self._rows.pieces(0, len(self))))

    def _are_there(self) -> Sequence[bool]:
        """Return by places which changes tell mails that are there."""
        return [kind is ChangeType.SAVE for kind, *_ in self._alike]

    def _change(self, packed: tuple[int, bytes, int, int]) -> PeerChange:
        uid, guid, modseq, place = packed
        kind, has_guid, flags, added, removed = self._alike[place]
        return PeerChange(kind, uid, guid if has_guid else b"", modseq, flags, added, removed)


class _Saves(Collection[SavedMail]):
    """The mails that are there, from a position on. `are_there`: by places."""

    def __init__(self, rows: Rows, are_there: Sequence[bool], start: int) -> None:
        self._rows = rows
        self._are_there = are_there
        self._start = start
        self._count = sum(1 for _ in self)

    def __iter__(self) -> Iterator[SavedMail]:
        pieces, are_there = self._rows.pieces(self._start, len(self._rows)), self._are_there
        unpacked = chain.from_iterable(map(_PACKED.iter_unpack, pieces))
        return (SavedMail(uid, guid) for uid, guid, _, place in unpacked if are_there[place])

    def __len__(self) -> int:
        return self._count

    def __contains__(self, mail: object) -> bool:
        return any(one == mail for one in self)
