"""Sequence sets (RFC 3501 section 9, `sequence-set`), before `*` is resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from protocol.values import UidSet


@dataclass(frozen=True, slots=True)
class SequenceSet:
    """Inclusive ranges in the order and direction that the client gave; a single number is a range of one.

    None is `*`, the largest number in use. The same type serves message sequence numbers and UIDs.
    """

    ranges: tuple[tuple[int | None, int | None], ...]

    def resolve(self, largest: int) -> UidSet:
        """Return the numbers, with `*` as `largest` (0 in an empty mailbox).

        Not clipped to existing messages: `559:*` holds `largest` even if that is below 559 (RFC 3501 section 6.4.8).
        """
        ends = ((largest if a is None else a, largest if b is None else b) for a, b in self.ranges)
        return UidSet.of_ranges((min(pair), max(pair)) for pair in ends)


@dataclass(frozen=True, slots=True)
class SavedResult:
    """`$`: the messages that the session's last SEARCH with SAVE has found (RFC 5182)."""


MessageSet: TypeAlias = SequenceSet | SavedResult
"""A name of messages in a command."""
