r"""Flags of a mail that both sides have.

A side tells the flags that a mail has, those that its users have set and cleared, and the mail's MODSEQ. Where both
have changed a flag, the later change counts; where one has, its change; and where nobody knows, the mail that was
changed later. MODSEQs of both sides can be compared: each raises its own to the other's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NO_FLAGS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FlagChanges:
    """Flags of a mail that are set and cleared; false if there are none."""

    added: frozenset[str] = NO_FLAGS
    removed: frozenset[str] = NO_FLAGS

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def flag_difference(now: frozenset[str], wanted: frozenset[str]) -> FlagChanges:
    """Return the flags to set, and those to clear. Case does not matter, as IMAP and Dovecot have it."""
    have, want = ({flag.casefold() for flag in flags} for flags in (now, wanted))
    added = frozenset(flag for flag in wanted if flag.casefold() not in have)
    return FlagChanges(added, frozenset(flag for flag in now if flag.casefold() not in want))


def lasting(changes: FlagChanges, flags: frozenset[str]) -> FlagChanges:
    """Return what is left of changes of a mail that has these flags now.

    A flag that was set and is gone is no news, nor one that was cleared and is back.
    """
    return FlagChanges(changes.added & flags, changes.removed - flags)


def interned(changes: Iterable[tuple[int, FlagChanges]]) -> dict[int, FlagChanges]:
    """Return these changes by UID, without empty ones. Equal ones are one object, which takes less memory."""
    alike = dict[FlagChanges, FlagChanges]()
    return {uid: alike.setdefault(one, one) for uid, one in changes if one}


@dataclass(frozen=True, slots=True)
class FlagSide:
    """One side's account of a mail. A mail's MODSEQ says when its flags changed last."""

    flags: frozenset[str]
    modseq: int
    added: frozenset[str] = NO_FLAGS
    removed: frozenset[str] = NO_FLAGS


def merged_flags(master: FlagSide, remote: FlagSide) -> frozenset[str]:
    """Return the flags that the mail has on both sides after the sync. The master wins if MODSEQs are equal."""
    is_later = remote.modseq > master.modseq
    winner, loser = (remote, master) if is_later else (master, remote)
    added = winner.added | (loser.added - winner.removed)
    removed = winner.removed | (loser.removed - winner.added)
    differing = master.flags ^ remote.flags
    return (winner.flags | (differing & added)) - (differing & removed)
