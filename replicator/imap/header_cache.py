"""Values of messages' headers in memory, for the next SEARCH, SORT or THREAD of the same messages (design section 6).

A row of the cache has one column's values of some messages, a few hundred that follow each other in a mailbox. Its key
is a digest of their bodies' hashes. Bodies never change, so a row is right for as long as it is here: there is nothing
to invalidate. If a message comes or goes, the rows with its neighbours are no longer asked for, and in time they are
the ones that leave.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Gauge

from protocol.units import KIB
from replicator.imap.rendering.header_columns import Column, ColumnValue

LARGEST_PART = 16
"""A row takes at most this part of the cache, so that a few unusual messages do not drive out everything else."""

ROW_BYTES = KIB
"""Size that a row counts besides its values: more than its key and its place take."""

LONGEST_NAME_BYTES = 100
"""Rows of fields with longer names are not kept: clients may make up any number of names, as long as a literal."""

_Key: TypeAlias = tuple[bytes, Column[ColumnValue]]


class CachedRow(NamedTuple):
    """One column's values of some messages, in their order, and their size in memory."""

    values: Sequence[ColumnValue]
    size_bytes: int


class HeaderCache:
    """The rows used last, within `max_bytes`. Belongs to the event loop, and is shared by all sessions of the node."""

    def __init__(self, max_bytes: int, registry: CollectorRegistry | None = None) -> None:
        self._max_bytes = max_bytes
        self._rows: OrderedDict[_Key, CachedRow] = OrderedDict()
        self._size_bytes = 0
        gauge = Gauge(
            "replicator_imap_header_cache_bytes",
            "Memory that values of headers take, which are kept for the next SEARCH, SORT or THREAD.",
            registry=registry,
        )
        gauge.set_function(lambda: self._size_bytes)

    def get(self, bodies: bytes, column: Column[ColumnValue]) -> CachedRow | None:
        """Return the row of a column for these bodies, by their `digest`."""
        key = (bodies, column)
        if (row := self._rows.get(key)) is not None:
            self._rows.move_to_end(key)
        return row

    def put(self, bodies: bytes, column: Column[ColumnValue], row: CachedRow) -> None:
        """Keep a row, unless it or its field's name is too large; let go of those not used for the longest time."""
        key, size_bytes = (bodies, column), row.size_bytes + ROW_BYTES
        is_large = size_bytes > self._max_bytes // LARGEST_PART or len(column.field) > LONGEST_NAME_BYTES
        if is_large or key in self._rows:
            return
        self._rows[key] = row
        self._size_bytes += size_bytes
        while self._size_bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._size_bytes -= oldest.size_bytes + ROW_BYTES


def digest(hashes: Iterable[bytes]) -> bytes:
    """Return the digest of the bodies with these content hashes, in this order."""
    return blake2b(b"".join(hashes), digest_size=16).digest()
