"""A list of messages with what a comparison with another server needs of each, in little memory.

A view has a message as objects, in some 700 bytes; a listing has it packed, in 48, and in a scratch file beyond the
first 16,384.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, overload

from replicator.mail.compact_uids import CompactUids
from replicator.mail.rows import KEY_BYTES, Rows
from replicator.mail.scratch import Scratch

_PACKED = struct.Struct("<I16sQqqI")
_UID = struct.Struct(f"<I{_PACKED.size - KEY_BYTES}x")
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

    `flag_sets`: all sets of flags that messages have. What is read may raise UnavailableError, if there is a scratch
    file.
    """

    def __init__(self, rows: Rows, flag_sets: Sequence[frozenset[str]], shown: range) -> None:
        """`shown`: which of the rows this listing has. Use `of`."""
        self.flag_sets = flag_sets
        self._rows = rows
        self._shown = shown

    @classmethod
    def of(cls, messages: Iterable[ListedMessage], scratch: Scratch | None = None) -> Listing:
        """Return these messages, which ascend by UID, as a listing. Where they are many, call it in a thread.

        Raises DiskFullError, UnavailableError.
        """
        rows, flag_sets = Rows(_PACKED.size, scratch), dict[frozenset[str], int]()
        for uid, guid, modseq, flags, received_ms, saved_ms in messages:
            of_flags = flag_sets.setdefault(flags, len(flag_sets))
            saved = _NOT_KNOWN if saved_ms is None else saved_ms
            rows.add(_PACKED.pack(uid, guid, modseq, received_ms, saved, of_flags))
        return cls(rows, [*flag_sets], range(len(rows)))

    @property
    def scratch(self) -> Scratch | None:
        """The file in which messages are that memory does not hold."""
        return self._rows.scratch

    def find(self, uid: int) -> ListedMessage | None:
        """Return the message with this UID."""
        at = self._rows.first_at(uid, self._shown.start)
        message = self._at(at) if at < self._shown.stop else None
        return message if message is not None and message.uid == uid else None

    def by_uid(self, uid: int) -> ListedMessage:
        """Return the message with this UID, which is there. Raises KeyError."""
        message = self.find(uid)
        if message is None:
            raise KeyError(uid)
        return message

    def first_above(self, uid: int) -> int:
        """Return the position of the first message above this UID."""
        return min(self._rows.first_at(uid + 1, self._shown.start), self._shown.stop) - self._shown.start

    def has_guid(self, begin: bytes) -> bool:
        """Return True if the GUID of a message begins so. Takes a millisecond for some 100,000 messages."""
        found = self._rows.search(begin, KEY_BYTES, self._shown.start, self._shown.stop)
        return next(found, None) is not None

    def uids(self) -> CompactUids:
        """Return the UIDs of all messages."""
        return CompactUids.ascending(uid for piece in self._pieces() for (uid,) in _UID.iter_unpack(piece))

    def __len__(self) -> int:
        return len(self._shown)

    def __iter__(self) -> Iterator[ListedMessage]:
        return map(self._message, chain.from_iterable(map(_PACKED.iter_unpack, self._pieces())))

    @overload
    def __getitem__(self, at: int) -> ListedMessage: ...

    @overload
    def __getitem__(self, at: slice) -> Listing: ...

    def __getitem__(self, at: int | slice) -> ListedMessage | Listing:
        if isinstance(at, int):
            return self._at(self._shown[at])
        shown = self._shown[at]
        if shown.step != 1:
            raise ValueError("a slice of a listing has all messages between its ends")
        return Listing(self._rows, self.flag_sets, range(shown.start, max(shown.start, shown.stop)))

    def _pieces(self) -> Iterator[bytes]:
        return self._rows.pieces(self._shown.start, self._shown.stop)

    def _at(self, at: int) -> ListedMessage:
        return self._message(_PACKED.unpack(self._rows.row(at)))

    def _message(self, packed: tuple[int, bytes, int, int, int, int]) -> ListedMessage:
        uid, guid, modseq, received_ms, saved_ms, flags = packed
        saved = None if saved_ms == _NOT_KNOWN else saved_ms
        return ListedMessage(uid, guid, modseq, self.flag_sets[flags], received_ms, saved)


NO_MESSAGES = Listing.of(())
