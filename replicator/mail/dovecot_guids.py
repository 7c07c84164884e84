"""GUIDs of Dovecot's mails, as mails here have them: texts there, 16 bytes here.

Dovecot gives copies of a mail within its folder the GUID of their source. A folder here has each GUID once, so a copy
has one of its own, which follows from that of its source: the next sync finds it again. It begins with a mark: what is
told of changes since the last sync does not name the sources, so a folder with copies is always compared as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from hashlib import sha1, sha256
from itertools import chain

COPY_MARK = bytes.fromhex("c0 91 e5 d5 7c")
"""The beginning of the GUIDs of copies. One in 2**40 other mails has it, too, which costs work only."""

COPIES_MAX = 100
"""Copies of one mail in a folder: with more, only a part of the folder is synced."""

_GUID_BYTES = 16
_HEX_DIGITS = 32
_HEX = re.compile("[0-9a-fA-F]*")


def guid_of(text: str) -> bytes:
    """Return the 16 bytes of a GUID. One that is no such number, as in a Maildir, is hashed as Dovecot does."""
    if len(text) == _HEX_DIGITS and _HEX.fullmatch(text) is not None:
        return bytes.fromhex(text)
    return sha1(text.encode(errors="surrogateescape"), usedforsecurity=False).digest()[-_GUID_BYTES:]


def guid_of_copy(source: bytes, number: int) -> bytes:
    """Return the GUID of a copy, counted from 1, of the mail with this GUID."""
    return (COPY_MARK + sha256(source + number.to_bytes(4, "big")).digest())[:_GUID_BYTES]


def is_copy(guid: bytes) -> bool:
    """Return True for the GUID of a copy."""
    return guid.startswith(COPY_MARK)


def copies_of(guid: bytes) -> Iterator[bytes]:
    """Yield the GUIDs that copies may have: the first ones are nearly always enough."""
    return (guid_of_copy(guid, number) for number in range(1, COPIES_MAX + 1))


def free_guid(guid: bytes, taken: Collection[bytes]) -> bytes | None:
    """Return this GUID or, if it is taken, that of a copy; None if there are as many copies as there may be."""
    return next((one for one in chain((guid,), copies_of(guid)) if one not in taken), None)
