"""Copies of a mail within its folder: Dovecot gives them the GUID of their source, and here each has one of its own.

A copy's GUID here follows from that of its source, so that the next sync finds it again. It begins with a mark: what
is told of changes since the last sync does not name the sources, so a folder with copies is always compared as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from replicator.dsync.wire.items import ChangeType, MailChange

MARK = bytes.fromhex("c0 91 e5 d5 7c")
"""The beginning of the GUIDs of copies. One in 2**40 other mails has it, too, which costs work only."""

COPIES_MAX = 100
"""Copies of one mail in a folder: with more, only a part of the folder is synced."""

_GUID_BYTES = 16


def guid_of_copy(source: str, number: int) -> str:
    """Return the GUID of a copy, counted from 1, of the mail with this GUID."""
    digest = sha256(bytes.fromhex(source) + number.to_bytes(4, "big")).digest()
    return (MARK + digest)[:_GUID_BYTES].hex()


def is_copy(guid: bytes) -> bool:
    """Return True for the GUID of a copy."""
    return guid.startswith(MARK)


def with_own_guids(
    changes: Sequence[MailChange], own: Mapping[int, str], kept: Collection[str]
) -> tuple[list[MailChange], dict[str, str]]:
    """Return the peer's changes with the GUIDs that copies have here, and the GUID of the source of each copy.

    `own`: GUIDs of this side's mails, and of expunged ones, by UID. `kept`: those of mails that are not told, as
    nothing has happened to them.
    """
    sources = dict[str, str]()
    found = list[MailChange]()
    taken = {*kept}
    for change in changes:
        here = own.get(change.uid, "")
        is_its = here != change.guid and here.startswith(MARK.hex()) and here in _copies_of(change.guid)
        if is_its:
            sources[here] = change.guid
        if change.type is ChangeType.SAVE and (is_its or here == change.guid):
            taken.add(here)
        found.append(replace(change, guid=here) if is_its else change)
    for at, change in enumerate(found):
        if change.type is not ChangeType.SAVE or own.get(change.uid) == change.guid:
            continue
        if change.guid in taken:
            free = next((one for one in _copies_of(change.guid) if one not in taken), None)
            if free is None:
                continue
            sources[free] = change.guid
            found[at] = replace(change, guid=free)
        taken.add(found[at].guid)
    return found, sources


def _copies_of(guid: str) -> list[str]:
    return [guid_of_copy(guid, number) for number in range(1, COPIES_MAX + 1)] if guid else []
