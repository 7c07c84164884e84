"""A mail of this side, and what its users have changed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_FLAGS: frozenset[str] = frozenset()


class StoredMail(NamedTuple):
    """A mail of a mailbox."""

    uid: int
    guid: bytes
    modseq: int
    flags: frozenset[str]
    received_s: int
    saved_s: int


@dataclass(frozen=True, slots=True)
class FlagChanges:
    """Flags of a mail that users have set and cleared since a MODSEQ."""

    added: frozenset[str] = NO_FLAGS
    removed: frozenset[str] = NO_FLAGS
