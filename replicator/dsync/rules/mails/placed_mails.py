"""Mails that come or move by a sync: each takes 28 bytes, and many are in a scratch file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple, Self

from replicator.mail.rows import Rows
from replicator.mail.scratch import Scratch

_PACKED = struct.Struct("<I16sII")  # UID, GUID, and both UIDs before; 0 is None


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
    """Such mails, in the order in which they are added.

    With a scratch file, what is added or read may raise DiskFullError or UnavailableError.
    """

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._scratch = scratch
        self._rows = Rows(_PACKED.size, scratch)

    def add(self, mail: Placed) -> None:
        """Add a mail."""
        guid, uid, own, peers = mail
        self._rows.add(_PACKED.pack(uid, guid, own or 0, peers or 0))

    def __iadd__(self, others: PlacedMails) -> Self:
        for mail in others:
            self.add(mail)
        return self

    def sort(self) -> None:
        """Bring the mails in the order of their UIDs, in which they nearly always are."""
        if any(one.uid > next_one.uid for one, next_one in pairwise(self)):
            mails = sorted(self, key=attrgetter("uid"))
            self._rows = Rows(_PACKED.size, self._scratch)
            for mail in mails:
                self.add(mail)

    def find(self, uid: int) -> Placed | None:
        """Return the mail with this UID, where they ascend."""
        at = self._rows.first_at(uid)
        mail = self[at] if at < len(self) else None
        return mail if mail is not None and mail.uid == uid else None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Placed]:
        return map(_placed, chain.from_iterable(map(_PACKED.iter_unpack, self._rows.pieces(0, len(self)))))

    def __getitem__(self, at: int) -> Placed:
        return _placed(_PACKED.unpack(self._rows.row(at)))


def _placed(packed: tuple[int, bytes, int, int]) -> Placed:
    uid, guid, own, peers = packed
    return Placed(guid, uid, own or None, peers or None)
