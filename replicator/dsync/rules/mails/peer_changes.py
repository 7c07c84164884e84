"""The peer's changes in columns: each takes some 35 bytes, where it would take 250 as an object."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from replicator.dsync.rules.mails.ascending import AscendingTexts
from replicator.dsync.wire.items import ChangeType, MailChange

_PACKED = struct.Struct("<16sQI")
_GUID = struct.Struct("16s")


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
"""What many changes have alike, which is in memory once: the type, whether there is a GUID, and flags."""


class PeerChanges:
    """Changes, ascending by UID. `names`: GUIDs that the peer writes in another way than this side, by UID."""

    def __init__(self) -> None:
        self.clear()

    def add(self, change: MailChange, guid: bytes) -> None:
        """Add the next change, whose mail has this GUID here."""
        kind, uid, name, modseq, flags, added, removed, _ = change
        alike = kind, bool(guid), flags, added, removed
        place = self._places.get(alike)
        if place is None:
            place = self._places[alike] = len(self._alike)
            self._alike.append(alike)
        self.uids.append(uid)
        self._packed += _PACKED.pack(guid, modseq, place)
        if name != guid.hex():
            self.names.add(uid, name)

    def clear(self) -> None:
        """Forget all."""
        self.uids = array("I")
        self.names = AscendingTexts()
        self._packed = bytearray()  # GUID, MODSEQ, and where the rest is in `_alike`
        self._alike: list[_Alike] = []
        self._places: dict[_Alike, int] = {}

    def guid(self, at: int) -> bytes:
        """Return the GUID of the change at a position, which has one."""
        return bytes(self._packed[at * _PACKED.size : at * _PACKED.size + _GUID.size])

    def set_guid(self, at: int, guid: bytes) -> None:
        """Give the mail of the change at a position another GUID."""
        _GUID.pack_into(self._packed, at * _PACKED.size, guid)

    def find(self, uid: int) -> PeerChange | None:
        """Return the change of this UID."""
        at = bisect_left(self.uids, uid)
        return self[at] if at < len(self.uids) and self.uids[at] == uid else None

    def position(self, uid: int) -> int:
        """Return the position of the change of this UID, which is there. Raises KeyError."""
        at = bisect_left(self.uids, uid)
        if at == len(self.uids) or self.uids[at] != uid:
            raise KeyError(uid)
        return at

    def by_uid(self, uid: int) -> PeerChange:
        """Return the change of this UID, which is there. Raises KeyError."""
        return self[self.position(uid)]

    def saves_above(self, uid: int) -> Sequence[int]:
        """Return the positions of the mails that are there above this UID."""
        first, are_there = bisect_right(self.uids, uid), self._are_there()
        rows = _PACKED.iter_unpack(memoryview(self._packed)[first * _PACKED.size :])
        return array("I", (at for at, (_, _, place) in enumerate(rows, first) if are_there[place]))

    def saved_guids(self) -> Iterator[bytes]:
        """Yield the GUIDs of the mails that are there."""
        are_there = self._are_there()
        return (guid for guid, _, place in _PACKED.iter_unpack(self._packed) if are_there[place])

    def positions_of(self, guid: bytes) -> Iterator[int]:
        """Yield the positions of the changes of a GUID. This looks through all."""
        at = self._packed.find(guid)
        while at >= 0:
            if at % _PACKED.size == 0:
                yield at // _PACKED.size
            at = self._packed.find(guid, at + 1)

    def __len__(self) -> int:
        return len(self.uids)

    def __iter__(self) -> Iterator[PeerChange]:
        return map(self._change, self.uids, _PACKED.iter_unpack(self._packed))

    def __getitem__(self, at: int) -> PeerChange:
        return self._change(self.uids[at], _PACKED.unpack_from(self._packed, at * _PACKED.size))

    def _are_there(self) -> Sequence[bool]:
        """Return by places which changes tell mails that are there."""
        return [kind is ChangeType.SAVE for kind, *_ in self._alike]

    def _change(self, uid: int, packed: tuple[bytes, int, int]) -> PeerChange:
        guid, modseq, place = packed
        kind, has_guid, flags, added, removed = self._alike[place]
        return PeerChange(kind, uid, guid if has_guid else b"", modseq, flags, added, removed)
