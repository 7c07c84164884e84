"""Flags of mails: system flags are bits, keywords are a list of changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from replicator.dsync.errors import DsyncError
from replicator.dsync.wire.values import encode_list

NO_FLAGS: frozenset[str] = frozenset()
RECENT_BIT = 32
_BITS = {1: "\\Answered", 2: "\\Flagged", 4: "\\Deleted", 8: "\\Seen", 16: "\\Draft"}
_KNOWN_BITS = sum(_BITS)


@cache
def _flags_of(bits: int) -> frozenset[str]:
    return frozenset(flag for bit, flag in _BITS.items() if bits & bit)


def flags_of(bits: int) -> frozenset[str]:
    r"""Return the flags of these bits, without `\Recent`."""
    return _flags_of(bits & _KNOWN_BITS)


def joined(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return all flags of both, in a set that exists already where that is possible: a mailbox has many alike."""
    return one | other if one and other else one or other


def bits_of(flags: frozenset[str], more: int = 0) -> str | None:
    """Return the value of the bits of system flags, and `more` of them; None if there are none."""
    bits = sum(bit for bit, flag in _BITS.items() if flag in flags) | more
    return f"{bits:x}" if bits else None


def keywords_of(changes: Sequence[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the keywords that a mail has, those that it was given, and those that were taken from it."""
    if not changes:
        return NO_FLAGS, NO_FLAGS, NO_FLAGS
    for change in changes:
        if change[:1] not in tuple("+-=&") or len(change) < 2:
            raise DsyncError("the peer sent a change of a keyword that is none")
    return (
        frozenset(change[1:] for change in changes if change[0] in "=&"),
        frozenset(change[1:] for change in changes if change[0] in "+&"),
        frozenset(change[1:] for change in changes if change[0] == "-"),
    )


def keyword_changes(flags: frozenset[str], added: frozenset[str], removed: frozenset[str]) -> str | None:
    """Return the value that says which keywords a mail has, and which it was given and lost."""
    changes = []
    for keyword in sorted(flags | added | removed):
        if keyword.startswith("\\"):
            continue
        if keyword in flags:
            changes.append(("&" if keyword in added else "=") + keyword)
        else:
            changes.append(("+" if keyword in added else "-") + keyword)
    return encode_list(changes) or None
