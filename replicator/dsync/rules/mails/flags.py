r"""Flags of a mail that both sides have.

A side tells the flags that a mail has, those that its users have set and cleared, and the mail's MODSEQ. Where both
have changed a flag, the later change counts; where one has, its change; and where nobody knows, the mail that was
changed later. MODSEQs of both sides can be compared: each raises its own to the other's.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_FLAGS: frozenset[str] = frozenset()


def flag_difference(now: frozenset[str], wanted: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the flags to set, and those to clear. Case does not matter, as IMAP and Dovecot have it."""
    have, want = ({flag.casefold() for flag in flags} for flags in (now, wanted))
    added = frozenset(flag for flag in wanted if flag.casefold() not in have)
    return added, frozenset(flag for flag in now if flag.casefold() not in want)


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
