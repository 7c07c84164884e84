"""The database's records of holders, also in a damaged database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_references import RecordedHolders, lost_attachments
from replicator.store.bodies.body_rows import holdings_of, keepers_of
from replicator.store.db import schema
from tests.attachments.file_systems.memory import MemoryFiles
from tests.attachments.helpers import open_attachments, store_content

BODY_HASH = bytes(32)


def part(number: int) -> bytes:
    return number.to_bytes(32)


def holder(number: int) -> str:
    return f"s{'0' * 32}i{number}"


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(schema.open_writer(Path(":memory:"))) as connection:
        yield connection


def record(database: sqlite3.Connection, *rows: tuple[object, object, object]) -> None:
    database.executemany(
        "INSERT INTO attachment (text, hash, holder, kept) VALUES (?, ?, ?, ?)", [(BODY_HASH, *row) for row in rows]
    )


DAMAGED = [(b"\x02", holder(1), 0), (part(2), "a", 1), (part(2), b"\x00", 1), (part(2), 7, 0), ("text", holder(1), 0)]


@pytest.mark.parametrize("row", DAMAGED)
def test_damaged_row_is_skipped(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture, row: tuple[object, object, object]
) -> None:
    record(database, (part(1), holder(1), 0), row, (part(3), holder(3), 1))
    whole = [Holding(part(1), holder(1)), Holding(part(3), holder(3), kept=True)]
    assert sorted(holdings_of(database, BODY_HASH), key=lambda held: held.hash) == whole
    assert "skipping a damaged row of table attachment" in caplog.text
    assert keepers_of(database, part(2)) == []
    records = RecordedHolders(database)
    assert records.holdings(None, 1) == whole[:1]
    assert records.holdings(whole[0], 1) == whole[1:], "a skipped row does not end the list"
    assert records.holdings(whole[1], 1) == []


@pytest.mark.parametrize("row", DAMAGED)
def test_attachment_of_a_damaged_row_counts_as_lost(
    database: sqlite3.Connection, row: tuple[object, object, object]
) -> None:
    store = open_attachments(MemoryFiles())
    there = store_content(store)
    record(database, (there.hash, there.holder, 0))
    assert lost_attachments(database, store, (b"", b"")).bodies == []
    record(database, row)
    assert lost_attachments(database, store, (b"", b"")).bodies == [BODY_HASH]


def test_query_for_few_holders_does_not_read_all_of_an_attachment(
    database: sqlite3.Connection,
) -> None:
    rows = [(number.to_bytes(32), part(1), holder(number), number % 2) for number in range(10_000)]
    database.executemany("INSERT INTO attachment (text, hash, holder, kept) VALUES (?, ?, ?, ?)", rows)
    hundreds = list[int]()
    database.set_progress_handler(lambda: hundreds.append(1), 100)
    asked = [holder(number) for number in (2, 3, 9_998, 10_000)]
    assert RecordedHolders(database).holders(part(1), asked) == {holder(2), holder(9_998)}
    assert len(hundreds) < 10
