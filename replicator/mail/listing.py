"""A list of messages with what a comparison with another server needs of each, in little memory.

A view has a message as objects, in some 700 bytes; a listing has it packed, in 48.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, overload

from replicator.mail.compact_uids import CompactUids

_PACKED = struct.Struct("<16sQqqI")
_NOT_KNOWN = -(1 << 63)  # in place of a save date


class ListedMessage(NamedTuple):
    """A message in a listing. The fields are those of `view.Message`."""

    uid: int
    guid: bytes
    modseq: int
    flags: frozenset[str]
    received_ms: int
    saved_ms: int | None


class Listing(Sequence[ListedMessage]):
    """Messages of a mailbox at one moment, ascending by UID. Immutable; a slice shares the memory of the whole.

    `flag_sets`: all sets of flags that messages have.
    """

    def __init__(self, uids: array[int], packed: bytearray, flag_sets: Sequence[frozenset[str]], rows: range) -> None:
        """`packed`: all but UIDs. `rows`: which of them this listing shows. Use `of`."""
        self.flag_sets = flag_sets
        self._uids = uids
        self._packed = packed
        self._rows = rows

    @classmethod
    def of(cls, messages: Iterable[ListedMessage]) -> Listing:
        """Return these messages, which ascend by UID, as a listing. Where they are many, call it in a thread."""
        uids, packed, flag_sets = array("I"), bytearray(), dict[frozenset[str], int]()
        for uid, guid, modseq, flags, received_ms, saved_ms in messages:
            uids.append(uid)
            of_flags = flag_sets.setdefault(flags, len(flag_sets))
            packed += _PACKED.pack(guid, modseq, received_ms, _NOT_KNOWN if saved_ms is None else saved_ms, of_flags)
        return cls(uids, packed, [*flag_sets], range(len(uids)))

    def find(self, uid: int) -> ListedMessage | None:
        """Return the message with this UID."""
        at = bisect_left(self._uids, uid, self._rows.start, self._rows.stop)
        return self._at(at) if at < self._rows.stop and self._uids[at] == uid else None

    def by_uid(self, uid: int) -> ListedMessage:
        """Return the message with this UID, which is there. Raises KeyError."""
        message = self.find(uid)
        if message is None:
            raise KeyError(uid)
        return message

    def first_above(self, uid: int) -> int:
        """Return the position of the first message above this UID."""
        return bisect_right(self._uids, uid, self._rows.start, self._rows.stop) - self._rows.start

    def has_guid(self, begin: bytes) -> bool:
        """Return True if the GUID of a message begins so. Takes a millisecond for some 100,000 messages."""
        first, end = self._rows.start * _PACKED.size, self._rows.stop * _PACKED.size
        at = self._packed.find(begin, first, end)
        while at >= 0 and at % _PACKED.size:
            at = self._packed.find(begin, at + 1, end)
        return at >= 0

    def uids(self) -> CompactUids:
        """Return the UIDs of all messages."""
        return CompactUids.ascending(self._uids[self._rows.start : self._rows.stop])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ListedMessage]:
        start, stop = self._rows.start, self._rows.stop
        rows = _PACKED.iter_unpack(memoryview(self._packed)[start * _PACKED.size : stop * _PACKED.size])
        return map(self._message, islice(self._uids, start, stop), rows)

    @overload
    def __getitem__(self, at: int) -> ListedMessage: ...

    @overload
    def __getitem__(self, at: slice) -> Listing: ...

    def __getitem__(self, at: int | slice) -> ListedMessage | Listing:
        if isinstance(at, int):
            return self._at(self._rows[at])
        rows = self._rows[at]
        if rows.step != 1:
            raise ValueError("a slice of a listing has all messages between its ends")
        return Listing(self._uids, self._packed, self.flag_sets, rows)

    def _at(self, row: int) -> ListedMessage:
        return self._message(self._uids[row], _PACKED.unpack_from(self._packed, row * _PACKED.size))

    def _message(self, uid: int, packed: tuple[bytes, int, int, int, int]) -> ListedMessage:
        guid, modseq, received_ms, saved_ms, flags = packed
        saved = None if saved_ms == _NOT_KNOWN else saved_ms
        return ListedMessage(uid, guid, modseq, self.flag_sets[flags], received_ms, saved)


NO_MESSAGES = Listing.of(())
