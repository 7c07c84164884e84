"""GUIDs of messages by UID, in 20 bytes for each, where a dict takes 150; many are in a scratch file.

A node may remember as many expunged messages of a mailbox as the mailbox has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from replicator.mail.rows import KEY_BYTES, Rows
from replicator.mail.scratch import Scratch

_PACKED = struct.Struct("<I16s")


class GuidsByUid(Mapping[int, bytes]):
    """The mapping, ascending by UID, and so it grows. Of several GUIDs of one UID, the last counts.

    With a scratch file, what is added or read may raise DiskFullError or UnavailableError.
    """

    def __init__(self, guids: Iterable[tuple[int, bytes]] = (), scratch: Scratch | None = None) -> None:
        """`guids`: ascending by UID; they need not be in memory."""
        self._rows = Rows(_PACKED.size, scratch)
        self._latest = 0
        for uid, guid in guids:
            self.add(uid, guid)

    def add(self, uid: int, guid: bytes) -> None:
        """Add a GUID of 16 bytes, for a UID that is not below the others."""
        if uid == self._latest:
            self._rows.overwrite(len(self._rows) - 1, KEY_BYTES, guid)
        else:
            self._rows.add(_PACKED.pack(uid, guid))
            self._latest = uid

    def __getitem__(self, uid: int) -> bytes:
        at = self._rows.first_at(uid)
        if at < len(self._rows):
            found, guid = _PACKED.unpack(self._rows.row(at))
            if found == uid:
                return bytes(guid)
        raise KeyError(uid)

    def __iter__(self) -> Iterator[int]:
        rows = chain.from_iterable(map(_PACKED.iter_unpack, self._rows.pieces(0, len(self._rows))))
        return (uid for uid, _ in rows)

    def __len__(self) -> int:
        return len(self._rows)
