"""Pages of the write-ahead log that a delivery writes, by the table or index that they belong to."""

import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import schema
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing import sequencer
from replicator.store.store import Store
from tests.store.harness import connection_of, open_store

HEADER_BYTES, FRAME_BYTES = 32, 24  # of the write-ahead log; before each page
TOGETHER = 4  # deliveries that share a commit
MAILS = 400


def written_pages(store: Store, path: Path) -> Counter[str]:
    """Return how many pages of each table and index were written since the last checkpoint."""
    connection = connection_of(store)
    try:
        named = dict(connection.execute("SELECT pageno, name FROM dbstat"))
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no table dbstat")
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    wal = path.with_name(f"{path.name}-wal").read_bytes()
    frames = range(HEADER_BYTES, len(wal), FRAME_BYTES + page_bytes)
    return Counter(named[int.from_bytes(wal[at : at + 4])] for at in frames)


async def test_deliveries_write_few_pages(tmp_path: Path) -> None:
    now_ms, rng = 1_700_000_000_000, random.Random(1)
    environment = Environment(clock_ms=lambda: now_ms, random=rng)
    keys = [MailboxKey(f"user{number}", environment.new_guid(), 7) for number in range(20)]

    def deliver(tx: Transaction) -> None:
        for key in rng.sample(keys, TOGETHER):
            stored = StoredBody.of(rng.randbytes(2800))
            sequencer.save(tx, key, stored, guid=environment.new_guid(), received_ms=now_ms, flags=())

    async with open_store(tmp_path, environment=environment) as store:
        connection = connection_of(store)
        for number in range(2 * MAILS // TOGETHER):
            if number == MAILS // TOGETHER:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.execute("PRAGMA wal_autocheckpoint = 0")
            now_ms += 5
            await store.write(deliver)
        written = written_pages(store, tmp_path / "node.db")
    assert "chain_user" not in written, "the index of users stays as it is while its users get mail"
    assert written["by_guid"] < 0.8 * MAILS, "messages that are delivered together stand together in the index of GUIDs"
    assert written.total() * schema.PAGE_BYTES < 18_000 * MAILS, written
