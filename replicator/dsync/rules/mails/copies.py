"""Copies of a mail within its folder: Dovecot gives them the GUID of their source, and here each has one of its own.

A copy's GUID here follows from that of its source, so that the next sync finds it again. It begins with a mark: what
is told of changes since the last sync does not name the sources, so a folder with copies is always compared as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from replicator.dsync.rules.mails.stored_mail import StoredMail
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


def have_copies(mails: Iterable[StoredMail]) -> bool:
    """Return True if there are copies among these mails of this side."""
    return any(is_copy(mail.guid) for mail in mails)


def named_here(guid: bytes, here: bytes, sources: dict[str, str]) -> bytes:
    """Return `here`, the GUID of this side's mail, if that is a copy of the mail with this GUID, and note its source.

    Return the GUID otherwise.
    """
    if guid in {here, b""} or here.hex() not in _copies_of(guid.hex()):
        return guid
    sources[here.hex()] = guid.hex()
    return here


def with_free_guids(
    changes: list[MailChange], here: Callable[[int], str], kept: Iterable[str], sources: dict[str, str]
) -> None:
    """Give copies among the peer's changes GUIDs that are free here, and note their sources.

    `here` returns the GUID of this side's mail, or expunged one, with a UID; empty if there is none. `kept`: GUIDs of
    mails that are not told, as nothing has happened to them.
    """
    saves = [at for at, change in enumerate(changes) if change.type is ChangeType.SAVE]
    new = [at for at in saves if here(changes[at].uid) != changes[at].guid]
    taken = {*kept, *(changes[at].guid for at in {*saves}.difference(new))}
    left_out = set[str]()  # GUIDs of mails that have as many copies as they may have
    for at in new:
        change = changes[at]
        if change.guid in left_out:
            continue
        if change.guid in taken:
            free = next((one for one in _copies_of(change.guid) if one not in taken), None)
            if free is None:
                left_out.add(change.guid)
                continue
            sources[free] = change.guid
            changes[at] = change._replace(guid=free)
        taken.add(changes[at].guid)


def _copies_of(guid: str) -> Iterator[str]:
    """Yield the GUIDs that copies may have: the first ones are nearly always enough."""
    return (guid_of_copy(guid, number) for number in range(1, COPIES_MAX + 1))
