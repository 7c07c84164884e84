"""Values of messages' headers in memory, and orders, for the next command on the same messages (design section 6).

A row of the cache has the values of one column, by which SEARCH, SORT and THREAD compare, or of one item of FETCH that
outlines tell. They are those of a few hundred messages that follow each other in a mailbox. A row's key is a digest of
the hashes of their bodies. Bodies never change, so a row is right for as long as it is here: there is nothing to
invalidate. If a message comes or goes, the rows with its neighbours are no longer asked for, and in time they are the
ones that leave. A row may also have the order in which SORT or THREAD has put messages, as many as were found
(`handlers/searches/kept_orders.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, TypeAlias
from weakref import ReferenceType

from prometheus_client import CollectorRegistry, Gauge

from protocol.units import KIB
from replicator.imap.rendering.header_columns import Column, ColumnValue
from replicator.imap.wire.commands.command_types import ThreadAlgorithm
from replicator.imap.wire.sort_keys import SortCriterion
from replicator.mail.view import MailboxView, Message

LARGEST_PART = 16
"""A row takes at most this part of the cache, so that a few unusual messages do not drive out everything else."""

ROW_BYTES = 2 * KIB
"""Size that a row counts besides its values: more than its key, with the longest names, and its place take."""

LONGEST_NAME_BYTES = 500
"""Rows of fields with longer names, in all, are not kept: clients may make up any number of long names."""

SLICE_MESSAGES = 250
"""Most messages of a row: few enough that their largest outlines fit in memory, 4 MiB."""

OrderedBy: TypeAlias = tuple[SortCriterion, ...] | ThreadAlgorithm


class Arrangement(NamedTuple):
    """An order by these criteria, or this algorithm, of messages of a mailbox while it has this view."""

    view: ReferenceType[MailboxView]
    by: OrderedBy


Kept: TypeAlias = Column[ColumnValue] | Arrangement | bytes
"""A column, an order, or the name of an item of FETCH, whose values a row has."""

_CONTENT_HASH: Callable[[Message], bytes] = attrgetter("content_hash")

_Key: TypeAlias = tuple[bytes, Kept]


class CachedRow(NamedTuple):
    """Values of some messages, in their order, and their size in memory.

    `left_out`: places, from 0 on, of messages that have none here, because theirs are too large.
    """

    values: Sequence[ColumnValue]
    size_bytes: int
    left_out: Sequence[int] = ()


class HeaderCache:
    """The rows used last, within `max_bytes`. Belongs to the event loop, and is shared by all sessions of the node."""

    def __init__(self, max_bytes: int, registry: CollectorRegistry | None = None) -> None:
        self._max_bytes = max_bytes
        self._rows: OrderedDict[_Key, CachedRow] = OrderedDict()
        self._size_bytes = 0
        gauge = Gauge(
            "replicator_imap_header_cache_bytes",
            "Memory that values of headers and orders take, which are kept for the next FETCH, SEARCH, SORT or THREAD.",
            registry=registry,
        )
        gauge.set_function(lambda: self._size_bytes)

    def get(self, messages: bytes, kept: Kept) -> CachedRow | None:
        """Return the row of a column or an order for these messages, by their `digest`."""
        key = (messages, kept)
        if (row := self._rows.get(key)) is not None:
            self._rows.move_to_end(key)
        return row

    def put(self, messages: bytes, kept: Kept, row: CachedRow) -> None:
        """Keep a row, unless it or its field's name is too large; let go of those not used for the longest time."""
        key, size_bytes = (messages, kept), row.size_bytes + ROW_BYTES
        if size_bytes > self._max_bytes // LARGEST_PART or _name_bytes(kept) > LONGEST_NAME_BYTES:
            return
        if (before := self._rows.pop(key, None)) is not None:
            self._size_bytes -= before.size_bytes + ROW_BYTES
        self._rows[key] = row
        self._size_bytes += size_bytes
        while self._size_bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._size_bytes -= oldest.size_bytes + ROW_BYTES


def slices(uids: Sequence[int], most: int | None = None) -> Iterator[Sequence[int]]:
    """Yield the UIDs, which ascend, in slices that begin at fixed UIDs. Where they lie scattered, one spans more.

    `most`: messages of a slice, if fewer than usual.
    """
    most = min(SLICE_MESSAGES, most or SLICE_MESSAGES)
    sparseness = (uids[-1] - uids[0]) // (2 * len(uids)) if uids else 0  # 0 while more than half of them are there
    span, start = SLICE_MESSAGES << sparseness.bit_length(), 0
    while start < len(uids):
        end = bisect_left(uids, (uids[start] // span + 1) * span, start, min(start + most, len(uids)))
        yield uids[start:end]
        start = end


def digest_of(messages: Iterable[Message]) -> bytes:
    """Return the digest of the bodies of these messages, in this order."""
    return digest(map(_CONTENT_HASH, messages))


def digest(names: Iterable[bytes]) -> bytes:
    """Return the digest of messages, in this order, by their content hashes, or for an order by their UIDs."""
    return blake2b(b"".join(names), digest_size=16).digest()


def _name_bytes(kept: Kept) -> int:
    match kept:
        case bytes():
            return len(kept)
        case Column():
            return len(kept.field)
    return 0
