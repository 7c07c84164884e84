"""SORT (RFC 5256 section 3): the values by which messages are compared, and their order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from replicator.imap.ordering.header_facts import SENT_MS, SUBJECT, display, mailbox
from replicator.imap.ordering.order import Order
from replicator.imap.ordering.parts import in_order
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.mail.view import Message

_TEXTS = {
    SortKey.FROM: Column(mailbox, b"from"),
    SortKey.TO: Column(mailbox, b"to"),
    SortKey.CC: Column(mailbox, b"cc"),
    SortKey.DISPLAYFROM: Column(display, b"from"),
    SortKey.DISPLAYTO: Column(display, b"to"),
}
_COLUMNS: dict[SortKey, Column[ColumnValue]] = {**_TEXTS, SortKey.DATE: SENT_MS, SortKey.SUBJECT: SUBJECT}


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


class Sortables:
    """Messages that are to be put in order by these criteria, with the values by which they are compared."""

    def __init__(self, criteria: Sequence[SortCriterion]) -> None:
        self._criteria = criteria
        self.uids = array("I")
        self._values: list[list[int | str]] = [[] for _ in criteria]
        self.columns: list[Column[ColumnValue]] = [_COLUMNS[one.key] for one in criteria if one.key in _COLUMNS]
        """The columns to read of the messages' headers."""

    def __len__(self) -> int:
        return len(self.uids)

    def add(self, messages: Sequence[Message], columns: Columns) -> None:
        """Add messages, in ascending order of UID, with the columns that are read of them."""
        self.uids.extend(array("I", [message.uid for message in messages]))
        for values, criterion in zip(self._values, self._criteria, strict=True):
            values.extend(_values(criterion.key, messages, columns))

    def order(self) -> Order:
        """Return the order of the messages, as they were added. Changes nothing: a thread may do it.

        A stable sort by each criterion, the last one first, puts messages that are equal by all of them in the order
        of their UIDs, as sequence numbers do (RFC 5256 section 3).
        """
        places: list[int] = [*range(len(self.uids))]
        for values, criterion in reversed([*zip(self._values, self._criteria, strict=True)]):
            if criterion.reverse:
                places = in_order(places[::-1], values.__getitem__)[::-1]
            else:
                places = in_order(places, values.__getitem__)
        return Order(array("I", places))

    def rows(self, places: Iterable[int]) -> list[Row]:
        """Return the rows of the messages at these places."""
        return [(*self._compared(place), self.uids[place]) for place in places]

    def _compared(self, place: int) -> Iterable[int | str | _Descending]:
        for values, criterion in zip(self._values, self._criteria, strict=True):
            value = values[place]
            if not criterion.reverse:
                yield value
            else:
                yield _Descending(value) if isinstance(value, str) else -value


def _values(key: SortKey, messages: Sequence[Message], columns: Columns) -> Iterable[int | str]:
    match key:
        case SortKey.ARRIVAL:
            return [message.received_ms for message in messages]
        case SortKey.SIZE:
            return [message.size_bytes for message in messages]
        case SortKey.DATE:
            return sent_or_received(messages, columns)
        case SortKey.SUBJECT:
            return [text for text, _ in columns.of(SUBJECT)]
    return columns.of(_TEXTS[key])


def sent_or_received(messages: Sequence[Message], columns: Columns) -> Sequence[int]:
    """Return the time in each message's Date field, else the internal date (RFC 5256 section 2.2)."""
    dates = columns.of(SENT_MS)
    if None not in dates:
        return cast("Sequence[int]", dates)
    sent = zip(messages, dates, strict=True)
    return [message.received_ms if sent_ms is None else sent_ms for message, sent_ms in sent]
