"""A mail of this side, and what its users have changed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

NO_FLAGS: frozenset[str] = frozenset()


class StoredMail(Protocol):
    """A mail of a mailbox. `saved_ms` is None if nobody knows when it was saved there."""

    @property
    def uid(self) -> int:
        """UID."""
        ...

    @property
    def guid(self) -> bytes:
        """16 bytes."""
        ...

    @property
    def modseq(self) -> int:
        """MODSEQ of its last change."""
        ...

    @property
    def flags(self) -> frozenset[str]:
        """Flags that are set."""
        ...

    @property
    def received_ms(self) -> int:
        """Date of reception."""
        ...

    @property
    def saved_ms(self) -> int | None:
        """Date of saving."""
        ...


@dataclass(frozen=True, slots=True)
class FlagChanges:
    """Flags of a mail that are set and cleared."""

    added: frozenset[str] = NO_FLAGS
    removed: frozenset[str] = NO_FLAGS
