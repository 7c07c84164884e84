"""SORT (RFC 5256 section 3): the values by which messages are compared, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replicator.imap.ordering.header_facts import HeaderFacts
from replicator.imap.ordering.parts import in_order
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.view import Message


@dataclass(frozen=True, slots=True)
class _Descending:
    """A text that is compared the other way round."""

    text: str

    def __lt__(self, other: _Descending) -> bool:
        return other.text < self.text


Row: TypeAlias = tuple[int | str | _Descending, ...]
"""Values of one message, in the order of the criteria; the UID is the last one, and makes the order unique."""


def uid_of(row: Row) -> int:
    """Return the UID of a row."""
    uid = row[-1]
    assert isinstance(uid, int)
    return uid


def needs_header(criteria: Sequence[SortCriterion]) -> bool:
    """Return True if the messages' headers must be read."""
    return any(criterion.key not in {SortKey.ARRIVAL, SortKey.SIZE} for criterion in criteria)


def row_of(criteria: Sequence[SortCriterion], message: Message, facts: HeaderFacts) -> Row:
    """Return a message's values. Uses no state that anything else changes, so it may run in a thread."""
    return (*(_compared(criterion, message, facts) for criterion in criteria), message.uid)


def _compared(criterion: SortCriterion, message: Message, facts: HeaderFacts) -> int | str | _Descending:
    value = _value(criterion.key, message, facts)
    if not criterion.reverse:
        return value
    return _Descending(value) if isinstance(value, str) else -value


def _value(key: SortKey, message: Message, facts: HeaderFacts) -> int | str:
    match key:
        case SortKey.ARRIVAL:
            return message.received_ms
        case SortKey.DATE:
            return message.received_ms if facts.sent_ms is None else facts.sent_ms
        case SortKey.SIZE:
            return message.size_bytes
        case SortKey.SUBJECT:
            return facts.subject.text
        case SortKey.DISPLAYFROM:
            return facts.display(b"from")
        case SortKey.DISPLAYTO:
            return facts.display(b"to")
    return facts.mailbox(key.value.lower().encode("ascii"))


def rows_in_order(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, in order."""
    return in_order(rows, key=tuple)
