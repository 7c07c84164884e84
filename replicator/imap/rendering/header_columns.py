"""Columns: values that are made of messages' headers, one a message, by which SEARCH, SORT and THREAD compare.

A value depends on the header alone, so it holds for every message with the same body, for as long as the node runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

from protocol.units import KIB
from replicator.imap.rendering.thread_id import named_thread
from replicator.imap.text.address_lists import parse_addresses
from replicator.imap.text.casemap import casemap
from replicator.imap.text.decoding import address_text, sent_date, value_text
from replicator.imap.work_meter import WorkMeter
from replicator.mime.header import Header

ColumnValue: TypeAlias = int | str | bytes | tuple[object, ...] | None
"""A value. Immutable: commands share them."""

V = TypeVar("V", bound=ColumnValue)
V_co = TypeVar("V_co", bound=ColumnValue, covariant=True)

BETWEEN_FIELDS = "\udfff"
"""Character between the texts of several fields. No text that is searched for has it, as it stands in no UTF-8."""


class Column(NamedTuple, Generic[V_co]):
    """A column: `make` returns the value of a header. `field` is the name, in lower case, of the field that it reads.

    Other fields that it may read are ones that outlines hold.
    """

    make: Callable[[Header, bytes], V_co]
    field: bytes


def made(column: Column[V], header: Header, work: WorkMeter) -> V:
    """Return the column's value of a header. Raises WorkExceededError.

    A step is a KiB of the header, or one of the fields whose texts the value joins.
    """
    work.spend((header.end - header.start) // KIB)
    value = column.make(header, column.field)
    if isinstance(value, str):
        work.spend(value.count(BETWEEN_FIELDS))
    return value


class Columns:
    """Values of some messages, by column, in the order of the messages. `sizes`: octets of each column in memory."""

    def __init__(
        self,
        values: Mapping[Column[ColumnValue], Sequence[ColumnValue]],
        sizes: Mapping[Column[ColumnValue], int],
    ) -> None:
        self._values = values
        self._sizes = sizes

    @property
    def size_bytes(self) -> int:
        """Octets of all columns in memory."""
        return sum(self._sizes.values())

    def size_of(self, column: Column[V]) -> int:
        """Return the octets in memory of a column that was read."""
        return self._sizes[column]

    def of(self, column: Column[V]) -> Sequence[V]:
        """Return the values of a column that was read."""
        return cast("Sequence[V]", self._values[column])


def size_bytes_of(values: Iterable[ColumnValue]) -> int:
    """Return the memory that values of a column take, as if no two of them were the same object."""
    size_bytes = 0
    for value in values:
        size_bytes += 8 + sys.getsizeof(value)  # with the pointer to it
        if isinstance(value, tuple):
            size_bytes += sum(map(sys.getsizeof, value))
    return size_bytes


# ---- what SEARCH compares ---------------------------------------------------------------------------------------


def texts(header: Header, name: bytes) -> str | None:
    """Return the fields of this name as they are compared; None if there are none."""
    return _joined(casemap(value_text(value)) for value in header.values(name))


def texts_and_addresses(header: Header, name: bytes) -> str | None:
    """Return the fields of this name, and the addresses in them, as they are compared; None if there are none.

    Addresses are those of ENVELOPE (RFC 3501 section 6.4.4), without the comments and spaces between their parts.
    """
    values = [*header.values(name)]
    addresses = chain.from_iterable(map(parse_addresses, values))
    return _joined(map(casemap, chain(map(value_text, values), map(address_text, addresses))))


def sent_day(header: Header, _name: bytes) -> int | None:
    """Return the day in the Date field, by its ordinal; None if there is no valid date."""
    day = sent_date(header)
    return None if day is None else day.toordinal()


def thread_named(header: Header, _name: bytes) -> str | None:
    """Return the THREADID that the header tells; None if it has no message id."""
    return named_thread(header)


SENT_DAY = Column(sent_day, b"date")
THREAD_NAMED = Column(thread_named, b"message-id")


def _joined(texts: Iterable[str]) -> str | None:
    found = [*texts]
    return BETWEEN_FIELDS.join(found) if found else None
