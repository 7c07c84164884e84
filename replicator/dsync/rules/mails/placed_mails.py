"""Mails that come or move by a sync, in columns: each takes some 30 bytes."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Self

_PACKED = struct.Struct("<16sII")


class Placed(NamedTuple):
    """A mail after the sync: its UID on both sides, and the UIDs that it had; None: that side lacks it."""

    guid: bytes
    uid: int
    own: int | None = None
    peers: int | None = None

    @property
    def comes(self) -> bool:
        """True if it comes from the peer."""
        return self.own is None


class PlacedMails:
    """Such mails, in the order in which they are added."""

    def __init__(self) -> None:
        self._uids = array("I")
        self._packed = bytearray()  # GUID, and both UIDs before; 0 is None

    def add(self, mail: Placed) -> None:
        """Add a mail."""
        guid, uid, own, peers = mail
        self._uids.append(uid)
        self._packed += _PACKED.pack(guid, own or 0, peers or 0)

    def __iadd__(self, others: PlacedMails) -> Self:
        self._uids += others._uids
        self._packed += others._packed
        return self

    def sort(self) -> None:
        """Bring the mails in the order of their UIDs, in which they nearly always are."""
        if any(one > next_one for one, next_one in pairwise(self._uids)):
            mails = sorted(self, key=attrgetter("uid"))
            self._uids, self._packed = array("I"), bytearray()
            for mail in mails:
                self.add(mail)

    def find(self, uid: int) -> Placed | None:
        """Return the mail with this UID, where they ascend."""
        at = bisect_left(self._uids, uid)
        return self[at] if at < len(self._uids) and self._uids[at] == uid else None

    def __len__(self) -> int:
        return len(self._uids)

    def __iter__(self) -> Iterator[Placed]:
        return map(_placed, self._uids, _PACKED.iter_unpack(self._packed))

    def __getitem__(self, at: int) -> Placed:
        return _placed(self._uids[at], _PACKED.unpack_from(self._packed, at * _PACKED.size))


def _placed(uid: int, packed: tuple[bytes, int, int]) -> Placed:
    guid, own, peers = packed
    return Placed(guid, uid, own or None, peers or None)
