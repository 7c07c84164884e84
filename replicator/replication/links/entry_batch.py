"""Converts small log entries to batches on the wire (ENTRIES) and back: packed as the log has them, with their bodies.

A batch spares the receiver most of the work of a command for each change. Entries that are not simple travel as
commands (`entry_codec`). What comes is held to what commands can express, since a peer may send anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import msgpack
import zstandard

from protocol.commands import Entries
from protocol.parser import NUMBER_MAX, terminal
from protocol.stream_codec import ProtocolError
from protocol.units import KIB, MIB
from protocol.values import UID_MAX, Dot, UidSet
from replicator.replication.links.entry_codec import CHANGED_ON_THE_WAY, Arrived
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.entry_validation import HASH_BYTES, USER_MAX_BYTES
from replicator.store.db.transaction import Logged
from resync.entry import (
    DIGEST_BYTES,
    ID_BYTES,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    MailAdd,
    MailDel,
    Raise,
    checked,
    tree_id,
)

BATCH_BYTES = 32 * KIB  # a request queues behind no more than behind commands (`link.OUTPUT_BYTES`)
BATCH_ENTRIES = 128
LONG_BYTES = 256 * KIB  # of a batch of one entry with its bodies, for peers and on links that take so long a one
BODIES_BYTES = MIB  # of the bodies of a batch, unpacked: they take some milliseconds
CHANGES_MAX = 100  # of an entry; more are worth an object (`object_entries`)
HEAVY_BYTES = 8 * KIB  # of a batch: to unpack so many takes some milliseconds at most

_FRAME_BYTES = 64  # in a batch, beside the packed entry and its bodies: the origin, at most twice this, and lengths
_BODY_FRAME_BYTES = 5  # the length of a body
_CHANGES = MailAdd | MailDel | FlagAdd | FlagDel | Raise | FolderCreate
_Packed = tuple[str, int, bytes, Sequence[bytes]]
"""An entry in a batch: its dot, itself as the log has it, and its bodies as the database has them."""


def batch_of(items: Iterable[Logged]) -> list[Logged]:
    """Return the first entry, and those that follow it and can travel in one batch with it."""
    batch: list[Logged] = []
    size_bytes = bodies_bytes = 0
    for item in items:
        is_small = _is_simple(item)
        size_bytes += _framed_bytes(item)
        bodies_bytes += _bodies_bytes(item)
        has_room = size_bytes <= BATCH_BYTES and bodies_bytes <= BODIES_BYTES and len(batch) < BATCH_ENTRIES
        if batch and not (is_small and has_room):
            break
        batch.append(item)
        if not is_small:
            break
    return batch


def pack_batch(batch: Iterable[Logged]) -> Entries:
    """Return the command that brings these entries."""
    packed = [(*item.entry.dot, item.entry.pack(), _bodies(item)) for item in batch]
    return Entries(cast("bytes", msgpack.packb(packed)))


def fits_alone(item: Logged) -> bool:
    """Return True if the entry brings messages, and can travel as a batch of its own, which may be a long one."""
    return (
        bool(item.bodies)
        and item.entry_bytes + _FRAME_BYTES <= BATCH_BYTES
        and _framed_bytes(item) <= LONG_BYTES
        and _bodies_bytes(item) <= BODIES_BYTES
        and _is_simple(item)
    )


def is_long(item: Logged) -> bool:
    """Return True if a batch of this entry alone is longer than others may be."""
    return _framed_bytes(item) > BATCH_BYTES


def _framed_bytes(item: Logged) -> int:
    return item.memory_bytes + _FRAME_BYTES + len(item.entry.dot.origin) + _BODY_FRAME_BYTES * len(item.bodies)


def _bodies_bytes(item: Logged) -> int:
    return item.size_bytes - item.entry_bytes


def _is_simple(item: Logged) -> bool:
    """Return True if the entry is simple enough for a batch, and all its bodies are here."""
    changes = item.entry.changes
    return (
        len(changes) <= CHANGES_MAX
        and all(isinstance(change, _CHANGES) for change in changes)
        and all(_is_small(item.bodies.get(content_hash)) for content_hash in _brought(changes))
    )


def _is_small(body: StoredBody | None) -> bool:
    return body is not None and body.parts is None and body.size_bytes > 0


def _bodies(item: Logged) -> list[bytes]:
    return [item.bodies[content_hash].packed for content_hash in _brought(item.entry.changes)]


def _brought(changes: Iterable[Change]) -> dict[bytes, int]:
    """Return the bodies that come with an entry, in order: hash -> size."""
    return {
        change.content_hash: change.size_bytes
        for change in changes
        if isinstance(change, MailAdd) and not change.copied
    }


def is_heavy_to_unpack(entries: Entries) -> bool:
    """Return True if `unpack_batch` takes more than some milliseconds."""
    return len(entries.packed) > HEAVY_BYTES


def unpack_batch(entries: Entries) -> list[Arrived]:
    """Return the entries of a batch. Raises ProtocolError if not all of them are what a node can send."""
    if len(entries.packed) > LONG_BYTES:
        raise ProtocolError(f"ENTRIES of {len(entries.packed)} bytes; the limit is {LONG_BYTES}")
    return _Unpacking().batch(entries.packed)


class _Unpacking:
    """The unpacking of one batch."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor()
        self._bodies_bytes = 0

    def batch(self, packed: bytes) -> list[Arrived]:
        try:
            found = msgpack.unpackb(packed, use_list=False)
            if not isinstance(found, tuple) or not 0 < len(found) <= BATCH_ENTRIES:
                raise ProtocolError(f"ENTRIES must hold 1 to {BATCH_ENTRIES} entries")
            if len(found) > 1 and len(packed) > BATCH_BYTES:
                raise ProtocolError(f"{len(found)} ENTRIES of {len(packed)} bytes; the limit is {BATCH_BYTES}")
            return [self._arrived(*checked(item, str, int, bytes, tuple)) for item in found]
        except (msgpack.UnpackException, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ProtocolError(f"ENTRIES cannot be read: {str(error)[:200]!a}") from None

    def _arrived(self, origin: str, seq: int, packed: bytes, bodies: tuple[bytes, ...]) -> Arrived:
        dot = _checked_dot(Dot(origin, seq))
        if len(packed) > BATCH_BYTES:
            raise ValueError(f"entry {seq} of {origin} has {len(packed)} bytes; the limit is {BATCH_BYTES}")
        entry = Entry.unpack(dot, packed)
        _check(entry)
        if entry.pack() is not packed or not entry.is_packed_as(packed):  # one form for one entry, and with a check
            raise ValueError(f"entry {seq} of {origin} is not packed as an entry")
        brought = _brought(entry.changes)
        if len(brought) != len(bodies):
            raise ValueError(f"entry {seq} of {origin} comes with {len(bodies)} bodies, not {len(brought)}")
        packed_bodies = checked(bodies, *(bytes for _ in bodies))
        return Arrived(
            entry, [self._body(*named, one) for named, one in zip(brought.items(), packed_bodies, strict=True)]
        )

    def _body(self, content_hash: bytes, size_bytes: int, packed: bytes) -> StoredBody:
        """Return a body as it is to be stored; what it unpacks to is only compared with its name."""
        self._bodies_bytes += size_bytes
        if not 0 < size_bytes <= BODIES_BYTES or self._bodies_bytes > BODIES_BYTES:
            raise ValueError(f"a body is empty, or bodies have more than {BODIES_BYTES} bytes together")
        body = StoredBody.of_packed(content_hash, packed, size_bytes, self._decompressor)
        if body is None or body.size_bytes != size_bytes:
            raise ProtocolError(f"a message in ENTRIES does not match its hash or size: {CHANGED_ON_THE_WAY}")
        return body


def _check(entry: Entry) -> None:
    """Raise TypeError or ValueError if no commands can express the entry, or it is none for a batch."""
    checked((entry.time, entry.modseq, entry.user), int, int, str)
    _check_range(0, NUMBER_MAX, entry.time, entry.modseq)
    if len(entry.user.encode()) > USER_MAX_BYTES:
        raise ValueError(f"a user's name is longer than {USER_MAX_BYTES} bytes")
    _check_lengths(ID_BYTES, entry.mailbox_id)
    checked((entry.uidvalidity,), int)
    _check_range(0, UID_MAX, entry.uidvalidity)
    if entry.is_tree and entry.mailbox_id != tree_id(entry.user):
        raise ValueError("a folder tree has an id that does not belong to its user")
    for dot in entry.predecessors:
        _checked_dot(dot)
    if entry.histories is not None:
        checked((entry.histories,), tuple)
        _check_lengths(DIGEST_BYTES, *entry.histories)
    if not 0 < len(entry.changes) <= CHANGES_MAX:
        raise ValueError(f"an entry has {len(entry.changes)} changes; in ENTRIES it must have 1 to {CHANGES_MAX}")
    for change in entry.changes:
        _check_change(change)
        if isinstance(change, FolderCreate) != entry.is_tree:
            raise ValueError(f"a {type(change).__name__} is out of place in a {'tree' if entry.is_tree else 'mailbox'}")


def _check_change(change: Change) -> None:
    match change:
        case MailAdd(uid, guid, received_ms, flags, size_bytes, content_hash, _):
            checked(tuple(change), int, bytes, int, tuple, int, bytes, bool)
            _check_range(1, UID_MAX, uid)
            _check_range(-NUMBER_MAX, NUMBER_MAX, received_ms)
            _check_range(0, NUMBER_MAX, size_bytes)
            _check_lengths(ID_BYTES, guid)
            _check_lengths(HASH_BYTES, content_hash)
            _check_flags(flags)
        case MailDel(uids):
            _check_uids(uids)
        case FlagAdd(uids, flags) | FlagDel(uids, flags):
            _check_uids(uids)
            checked((flags,), tuple)
            _check_flags(flags)
        case Raise(uidnext):
            checked((uidnext,), int)
            _check_range(1, UID_MAX, uidnext)
        case FolderCreate(mailbox_id, name, uidvalidity):
            checked((mailbox_id, name, uidvalidity), bytes, str, int)
            _check_lengths(ID_BYTES, mailbox_id)
            _check_range(0, UID_MAX, uidvalidity)
        case _:
            raise ValueError(f"ENTRIES cannot hold a {type(change).__name__}")


def _checked_dot(dot: Dot) -> Dot:
    checked(tuple(dot), str, int)
    _check_range(0, NUMBER_MAX, dot.seq)
    if terminal("ORIGIN").fullmatch(dot.origin) is None:
        raise ValueError(f"{dot.origin[:80]!a} is not an origin")
    return dot


def _check_range(low: int, high: int, *values: int) -> None:
    for value in values:
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}")


def _check_lengths(length: int, *values: bytes) -> None:
    for value in values:
        if type(value) is not bytes or len(value) != length:
            raise ValueError(f"a value is not {length} bytes")


def _check_flags(flags: tuple[str, ...]) -> None:
    is_flag = terminal("FLAG").fullmatch
    for flag in flags:
        if type(flag) is not str or is_flag(flag) is None:
            raise ValueError(f"{str(flag)[:80]!a} is not a flag")


def _check_uids(uids: UidSet) -> None:
    for one in checked((uids.ranges,), tuple)[0]:
        checked(one, int, int)
        _check_range(1, UID_MAX, *one)
    if any(low > high for low, high in uids.ranges) or UidSet.of_ranges(uids.ranges) != uids:
        raise ValueError("a set of UIDs is out of order")
