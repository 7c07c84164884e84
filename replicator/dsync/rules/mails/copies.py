"""Copies of a mail within its folder: Dovecot gives them the GUID of their source, and here each has one of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain

from replicator.dsync.rules.mails.peer_changes import PeerChanges
from replicator.dsync.wire.items import ChangeType
from replicator.mail.dovecot_guids import copies_of, free_guid, is_copy

_PLACES = 8
"""Places in a table for each GUID: on average, one in sixteen finds its place taken, and is looked at again."""

_TABLE_GUIDS = 1 << 18
"""GUIDs that are looked at together: their table takes 2 MiB."""


def named_here(guid: bytes, here: bytes, sources: dict[bytes, bytes]) -> bytes:
    """Return `here`, the GUID of this side's mail, if that is a copy of the mail with this GUID, and note its source.

    Return the GUID otherwise.
    """
    if guid in {here, b""} or here not in copies_of(guid):
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
        guid = free_guid(source, taken) if source not in left_out else None
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
