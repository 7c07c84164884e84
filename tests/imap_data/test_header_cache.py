"""The cache of header values: what it keeps, and how much memory that takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from replicator.imap.header_cache import LARGEST_PART, LONGEST_NAME_BYTES, ROW_BYTES, CachedRow, HeaderCache, digest
from replicator.imap.ordering.header_facts import REFERENCES, SENT_MS, SUBJECT
from replicator.imap.rendering.header_columns import Column, Columns, ColumnValue, made, size_bytes_of, texts
from replicator.imap.work_meter import WorkMeter
from replicator.mime.header import Header

SIZE_BYTES = 9 * ROW_BYTES
ROW = CachedRow((1, 2), SIZE_BYTES)
MAX_BYTES = 20 * (SIZE_BYTES + ROW_BYTES)


def keys(count: int) -> list[bytes]:
    return [digest([number.to_bytes(32, "big")]) for number in range(count)]


def test_rows_used_last_stay() -> None:
    registry = CollectorRegistry()
    cache, (first, second, *more) = HeaderCache(MAX_BYTES, registry), keys(21)
    for key in (first, second, *more[:18]):
        cache.put(key, SENT_MS, ROW)
    assert cache.get(first, SENT_MS) is ROW
    assert cache.get(first, SUBJECT) is None
    cache.put(more[18], SENT_MS, ROW)
    assert [cache.get(key, SENT_MS) for key in (first, second, *more)] == [ROW, None, *[ROW] * 19]
    assert registry.get_sample_value("replicator_imap_header_cache_bytes") == MAX_BYTES


def test_row_that_is_put_again_counts_once() -> None:
    """Two sessions may make the same row at the same time."""
    registry = CollectorRegistry()
    cache, [key] = HeaderCache(MAX_BYTES, registry), keys(1)
    for _ in range(2):
        cache.put(key, SENT_MS, ROW)
    assert registry.get_sample_value("replicator_imap_header_cache_bytes") == SIZE_BYTES + ROW_BYTES


def test_large_rows_and_any_row_of_an_empty_cache_are_not_kept() -> None:
    [key] = keys(1)
    cache = HeaderCache(MAX_BYTES)
    cache.put(key, SENT_MS, CachedRow((1,), MAX_BYTES // LARGEST_PART))
    assert cache.get(key, SENT_MS) is None
    cache.put(key, SENT_MS, CachedRow((1,), MAX_BYTES // LARGEST_PART - ROW_BYTES))
    assert cache.get(key, SENT_MS) is not None
    nothing = HeaderCache(0)
    nothing.put(key, SENT_MS, CachedRow((), 0))
    assert nothing.get(key, SENT_MS) is None


def test_rows_of_names_that_no_field_has_are_not_kept() -> None:
    """A client may search for any number of fields, with names as long as a literal."""
    [key] = keys(1)
    cache = HeaderCache(MAX_BYTES)
    for length in (LONGEST_NAME_BYTES, LONGEST_NAME_BYTES + 1):
        cache.put(key, Column(texts, b"x" * length), ROW)
    assert cache.get(key, Column(texts, b"x" * LONGEST_NAME_BYTES)) is ROW
    assert cache.get(key, Column(texts, b"x" * (LONGEST_NAME_BYTES + 1))) is None


def test_ids_of_a_thread_are_the_last_ones() -> None:
    raw = b"References: " + b"".join(b"<%d>" % number for number in range(1000)) + b"\r\n\r\n"
    kept = made(REFERENCES, Header.at(raw, 0, len(raw)), WorkMeter(100))
    assert kept == tuple(b"%d" % number for number in range(800, 1000))


def test_digest_tells_which_bodies_in_which_order() -> None:
    one, two = bytes(32), bytes([1] * 32)
    assert len({digest([]), digest([one]), digest([one, two]), digest([two, one])}) == 4


def test_memory_of_rows_is_what_they_count() -> None:
    """Measured: the cache never takes more than it counts, and counts no more than twice what it takes."""
    fields = "Date: 1 Jan 2024 10:%02d:00 +0000\r\nSubject: Re: News of %d\r\nReferences: <a%d@x> <b%d@x>\r\n\r\n"
    columns: list[Column[ColumnValue]] = [SENT_MS, SUBJECT, REFERENCES, Column(texts, b"subject")]
    headers = [(fields % (number % 60, number, number, number)).encode() for number in range(5000)]
    cache = HeaderCache(1 << 30, registry := CollectorRegistry())
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for start in range(0, len(headers), 250):
        for column in columns:
            cache.put(digest([b"%d" % start]), column, row_of(column, headers[start : start + 250]))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = registry.get_sample_value("replicator_imap_header_cache_bytes")
    assert counted is not None
    assert taken <= counted <= 2 * taken


def row_of(column: Column[ColumnValue], headers: Iterable[bytes]) -> CachedRow:
    values = tuple(made(column, Header.at(raw, 0, len(raw)), WorkMeter(100)) for raw in headers)
    return CachedRow(values, size_bytes_of(values))


def test_columns_give_their_values() -> None:
    columns = Columns({SENT_MS: (1, None), SUBJECT: (("a", False), ("", True))}, {SENT_MS: 8, SUBJECT: 90})
    assert columns.of(SENT_MS) == (1, None)
    assert (columns.size_of(SENT_MS), columns.size_bytes) == (8, 98)
