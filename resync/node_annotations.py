"""Annotations of the tree that only nodes set: on folders that another server has, too, syncs, and purges.

Two annotations tell a UIDVALIDITY that a folder keeps (design section 3). The one of the folder holds it. The one of
the account names, for ever, the folder that has it: so of two folders that have got one UIDVALIDITY on two sides, the
later one keeps it. A GUID by which a Dovecot knows a folder is told by an annotation of the account alone, and so is a
sync that has begun to place a Dovecot's mails in a folder and has not ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from protocol.values import UID_MAX
from resync.entry import NOWHERE, AnnotationState
from resync.state import RISEN_MAX

OWN = "/private/vendor/mail-replicator/"
"""The beginning of the names of annotations that nodes alone set, and no client sees."""
KEPT_UIDVALIDITY = OWN + "uidvalidity"
"""The annotation of a folder. Its value is the UIDVALIDITY, in decimal digits."""
UIDVALIDITY_HOLDER = KEPT_UIDVALIDITY + "/"
"""The beginning of the name of an annotation of the account; the UIDVALIDITY follows.

The value is the folder's mailbox id in hexadecimal, and the folder's own UIDVALIDITY.
"""


FOREIGN_GUID = OWN + "guid/"
"""The beginning of the name of an annotation of the account; a GUID of a Dovecot's mailbox follows, in hexadecimal.

The value is the id of the folder that Dovecots know by it, in hexadecimal. It stays when the folder is deleted.
"""
UNFINISHED_SYNC = OWN + "unfinished-sync/"
"""The beginning of the name of an annotation of the account; a folder's id and the hash of a Dovecot's name follow.

Both are in hexadecimal, with a slash between. The folder may be deleted, and still be shown for its mail.

The value is the last UID up to which both had the same mails as a sync began that has not ended, in decimal digits.
"""
PURGED = OWN + "purged"
"""The annotation of the account that says up to where an operator has removed all that a former user had.

The value is `UNDER_WAY` until all has gone, and then the UIDNEXT of INBOX, in decimal digits; 1 if not all has gone,
because it broke off. What was removed before the last change of this annotation, or while it is under way, no user has
removed.
"""
UNDER_WAY = b"under way"
UID_DIGITS = len(str(UID_MAX))


def uid_in(value: bytes) -> int | None:
    """Return the UID, or UIDNEXT, that is the value of an annotation; None if it is none."""
    return int(value) if value.isdigit() and len(value) <= UID_DIGITS else None


def held_by(mailbox_id: bytes, own: int) -> bytes:
    """Return the value that names this folder, of this UIDVALIDITY of its own, as the holder of another one."""
    return f"{mailbox_id.hex()} {own}".encode()


def holder_of(value: bytes) -> bytes | None:
    """Return the mailbox id in a value that `held_by` returned; None for any other value."""
    try:
        return bytes.fromhex(value.decode("ascii").partition(" ")[0])
    except ValueError:
        return None


def holders_in(mailbox_id: bytes, name: str, value: bytes | None) -> Iterator[bytes]:
    """Yield the ids of the folders whose UIDVALIDITY, as clients see it, depends on this annotation."""
    if name == KEPT_UIDVALIDITY:
        yield mailbox_id
    elif name.startswith(UIDVALIDITY_HOLDER) and value is not None and (holder := holder_of(value)) is not None:
        yield holder


def kept_in(names: Iterable[str]) -> list[int]:
    """Return, in order, the UIDVALIDITYs in the names of the account's annotations."""
    texts = (name.removeprefix(UIDVALIDITY_HOLDER) for name in names if name.startswith(UIDVALIDITY_HOLDER))
    return sorted(int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) <= len(str(1 << 32)))


def holders(annotations: Iterable[AnnotationState]) -> dict[int, bytes]:
    """Return the folders of a tree that have, or had, a UIDVALIDITY of another server, by that."""
    found = {one.name: one.value for one in annotations if one.mailbox_id == NOWHERE and one.value is not None}
    return {kept: holder_of(found[f"{UIDVALIDITY_HOLDER}{kept}"]) or b"" for kept in kept_in(found)}


def can_rise_to(own: int, kept: Sequence[int]) -> bool:
    """Return True if a folder's own UIDVALIDITY, with what merges may add, can become one of these, in order."""
    at = bisect_left(kept, own)
    return at < len(kept) and kept[at] <= own + RISEN_MAX
