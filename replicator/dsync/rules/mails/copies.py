"""Copies of a mail within its folder: Dovecot gives them the GUID of their source, and here each has one of its own.

A copy's GUID here follows from that of its source, so that the next sync finds it again. It begins with a mark: what
is told of changes since the last sync does not name the sources, so a folder with copies is always compared as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256
from itertools import chain

from replicator.dsync.rules.mails.peer_changes import PeerChanges
from replicator.dsync.wire.items import ChangeType

MARK = bytes.fromhex("c0 91 e5 d5 7c")
"""The beginning of the GUIDs of copies. One in 2**40 other mails has it, too, which costs work only."""

COPIES_MAX = 100
"""Copies of one mail in a folder: with more, only a part of the folder is synced."""

_GUID_BYTES = 16
_PLACES = 8
"""Places in a table for each GUID: on average, one in sixteen finds its place taken, and is looked at again."""

_TABLE_GUIDS = 1 << 18
"""GUIDs that are looked at together: their table takes 2 MiB."""


def guid_of_copy(source: bytes, number: int) -> bytes:
    """Return the GUID of a copy, counted from 1, of the mail with this GUID."""
    return (MARK + sha256(source + number.to_bytes(4, "big")).digest())[:_GUID_BYTES]


def is_copy(guid: bytes) -> bool:
    """Return True for the GUID of a copy."""
    return guid.startswith(MARK)


def named_here(guid: bytes, here: bytes, sources: dict[bytes, bytes]) -> bytes:
    """Return `here`, the GUID of this side's mail, if that is a copy of the mail with this GUID, and note its source.

    Return the GUID otherwise.
    """
    if guid in {here, b""} or here not in _copies_of(guid):
        return guid
    sources[here] = guid
    return here


def with_free_guids(
    changes: PeerChanges, here: Callable[[int], bytes], kept: Collection[bytes], sources: dict[bytes, bytes]
) -> None:
    """Give copies among the peer's changes GUIDs that are free here, and note their sources.

    `here` returns the GUID of this side's mail, or expunged one, with a UID; empty if there is none. `kept`: GUIDs of
    mails that are not told, as nothing has happened to them.
    """
    several = repeated(lambda: chain(kept, changes.saved_guids()), len(kept) + len(changes))
    if not several:
        return

    def matters(guid: bytes) -> bool:
        return guid in several or is_copy(guid)

    old = (one.guid for one in changes if one.type is ChangeType.SAVE and here(one.uid) == one.guid)
    taken = {guid for guid in chain(kept, old) if matters(guid)}
    left_out = set[bytes]()  # GUIDs of mails that have as many copies as they may have
    for at, change in enumerate(changes):
        source = change.guid
        if change.type is not ChangeType.SAVE or not matters(source) or here(change.uid) == source:
            continue
        free = chain((source,), _copies_of(source)) if source not in left_out else ()
        guid = next((one for one in free if one not in taken), None)
        if guid is None:
            left_out.add(source)
            continue
        taken.add(guid)
        if guid != source:
            sources[guid] = source
            changes.set_guid(at, guid)


def repeated(guids: Callable[[], Iterable[bytes]], most: int) -> set[bytes]:
    """Return those that occur more than once. Besides these, that takes 2 MiB at most, however many there are.

    `guids` returns all, anew each time; they are so many at most.
    """
    parts = most // _TABLE_GUIDS + 1
    size = _PLACES * (most // parts) + 1
    several = set[bytes]()
    for part in range(parts):
        table, suspects = bytearray(size), set[bytes]()
        for guid in guids():
            place, its_part = divmod(hash(guid), parts)
            if its_part == part:
                place %= size
                if table[place]:
                    suspects.add(guid)
                table[place] = 1
        once = set[bytes]()
        for guid in guids() if suspects else ():
            if guid in suspects:
                (several if guid in once else once).add(guid)
    return several


def _copies_of(guid: bytes) -> Iterator[bytes]:
    """Yield the GUIDs that copies may have: the first ones are nearly always enough."""
    return (guid_of_copy(guid, number) for number in range(1, COPIES_MAX + 1))
