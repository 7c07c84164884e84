"""Tables of an inventory, which hold what the database shows except for damaged rows, and those are reported."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import UidSet
from replicator.store.db import queries
from replicator.store.db.damage import is_damage
from replicator.store.inventory import parquet, tables, writing
from replicator.store.inventory.conversation import LeftOut
from replicator.store.inventory.flags import FlagReader
from replicator.store.inventory.screening import KEYS, key_of
from replicator.store.log.sequencing import sequencer
from resync.inventory import TABLES
from tests.effort import examples
from tests.inventory import expected
from tests.inventory.reading_back import write_and_read
from tests.store.harness import INBOX, guid, saving
from tests.store.memory_cluster import Cluster
from tests.store.memory_cluster import save as save_something
from tests.store.memory_node import MemoryNode

DATABASE_TABLES = {
    "heads": "chain", "messages": "by_uid", "guids": "by_guid", "folders": "folder", "subscriptions": "subscription",
    "annotations": "annotation",
}  # fmt: skip
AFTER_MERGES = (
    "UPDATE by_uid SET also = x'919292a56463392e7a0500' WHERE uid % 5 = 0",
    "UPDATE by_uid SET claim_origin = 'dc9.z' WHERE uid % 3 = 0",
    "UPDATE by_uid SET claim_seq = 77 WHERE uid % 4 = 0",
    "UPDATE chain SET risen = 5 WHERE uidvalidity > 0 AND uidnext % 2",
)
INVALID_VALUES = (
    "CAST(x'41ff42' AS TEXT)", "x'ff'", "'text'", "1.5", "x''", "CAST(x'00' AS TEXT)", "x'81a141'", "-9e99",
    "CAST(zeroblob(16) AS TEXT)", "x'81a14193cf0000000000000001a164c301'", "x'81a14193cfffffffffffffffffa164c3'",
)  # fmt: skip


@contextmanager
def small_limits(*, batch: int, group: int, file: int) -> Iterator[None]:
    """Limit batches, row groups and files to so few rows that a few dozen rows fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "BATCH_ROWS", batch)
        patch.setattr(parquet, "GROUP_ROWS", group)
        patch.setattr(parquet, "FILE_ROWS", file)
        yield


def random_node(rng: random.Random, steps: int) -> MemoryNode:
    """Return one of three nodes, which has applied some of the changes of all."""
    cluster = Cluster(3)
    for _ in range(steps):
        match rng.randrange(6):
            case 0:
                cluster.exchange(rng, rng.randrange(1, 9))
            case _:
                cluster.change(rng.choice(cluster.keys), rng)
    cluster.exchange(rng, 100)
    kept, *others = cluster.nodes
    for node in others:
        node.connection.close()
    return kept


@given(st.integers(0, 80), st.randoms(use_true_random=False))
@settings(max_examples=examples(8, 15))
def test_inventory_equals_what_the_node_shows(steps: int, rng: random.Random) -> None:
    node = random_node(rng, steps)
    for statement in AFTER_MERGES:
        node.connection.execute(statement)
    with TemporaryDirectory() as directory, small_limits(batch=rng.randint(1, 9), group=rng.randint(1, 9), file=16):
        taken = write_and_read(node.connection, Path(directory) / "to")
    assert taken.tables == expected.tables(node.connection)
    assert taken.manifest.context == queries.log_context(node.connection)
    assert not taken.manifest.unreadable
    node.connection.close()


@pytest.mark.long
@given(st.integers(20, 60), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_damaged_rows_are_reported_and_the_others_written(steps: int, damages: int, rng: random.Random) -> None:
    node = random_node(rng, steps)
    whole = expected.tables(node.connection)
    damaged = [damage_random_row(node.connection, rng) for _ in range(damages)]
    with TemporaryDirectory() as directory, small_limits(batch=rng.randint(1, 9), group=4, file=16):
        taken = write_and_read(node.connection, Path(directory) / "to")
    for table, rows in taken.tables.items():
        left = [row for row in whole[table] if row in rows]
        # An inventory cannot recognize a damaged value that is valid.
        changed = [row for row in rows if row not in left]
        assert len(changed) <= damaged.count(table)
        assert len(rows) + taken.manifest.unreadable.get(table, 0) == len(whole[table])
    assert len(taken.unreadable) == sum(taken.manifest.unreadable.values()) <= damages
    node.connection.close()


def damage_random_row(connection: sqlite3.Connection, rng: random.Random) -> str | None:
    """Damage one column of one row, but not of its key. Return the table."""
    table = rng.choice(list(DATABASE_TABLES))
    name = DATABASE_TABLES[table]
    columns = [row for row in connection.execute(f"PRAGMA table_info({name})").fetchall() if not row[5]]
    key = [row[1] for row in connection.execute(f"PRAGMA table_info({name})").fetchall() if row[5]]
    rows = connection.execute(f"SELECT {', '.join(key)} FROM {name}").fetchall()
    if not rows:
        return None
    where = " AND ".join(f"{column} = ?" for column in key)
    statement = f"UPDATE {name} SET {rng.choice(columns)[1]} = {rng.choice(INVALID_VALUES)} WHERE {where}"
    connection.execute(statement, rng.choice(rows))
    return table


def some_mail(count: int = 5) -> MemoryNode:
    node = MemoryNode("dc1.a")
    rng = random.Random(1)
    for _ in range(count):
        save_something(node, INBOX, rng)
    return node


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("messages", "origin", "CAST(x'41ff' AS TEXT)"),
        ("messages", "guid", "CAST(zeroblob(16) AS TEXT)"),
        ("messages", "guid", "zeroblob(15)"),
        ("messages", "content_hash", "x''"),
        ("messages", "seq", "1.5"),
        ("messages", "change", "1 << 31"),
        ("messages", "claim_origin", "x'00'"),
        ("messages", "claim_seq", "'x'"),
        ("messages", "flags", "x'81a55c5365656e'"),
        ("messages", "flags", "x'81a55c5365656e93cf0000000000000001a3646331'"),
        ("messages", "flags", "x'81a55c5365656e93cf0000000000000001a364633101'"),
        ("messages", "flags", "x'81a55c5365656e93cfffffffffffffffffa3646331c3'"),
        ("messages", "flags", "x'93010203'"),
        ("messages", "flags", "'text'"),
        ("messages", "flags", "x''"),
        ("messages", "flags", "0"),
        ("guids", "origin", "x'00'"),
        ("guids", "uid", "'x'"),
        ("heads", "context", "x'c0'"),
        ("heads", "context", "x'81a161cfffffffffffffffff'"),
        ("heads", "user", "CAST(x'61ff' AS TEXT)"),
        ("heads", "head_origin", "CAST(x'642e61ff' AS TEXT)"),
        ("heads", "head_origin", "x'642e61'"),
    ],
)
def test_invalid_value_leaves_out_only_its_row(tmp_path: Path, table: str, column: str, value: str) -> None:
    """The row is the third of five messages, or a head. It alone is reported."""
    node = some_mail()
    name = DATABASE_TABLES[table]
    where = "uid = 3" if table != "heads" else "id = (SELECT MAX(id) FROM chain)"
    before = write_and_read(node.connection, tmp_path / "before")
    assert node.connection.execute(f"UPDATE {name} SET {column} = {value} WHERE {where}").rowcount == 1
    after = write_and_read(node.connection, tmp_path / "after")
    key = "mailbox" if table == "heads" else "uid"
    gone = [row for row in before.tables[table] if row not in after.tables[table]]
    assert [row for row in before.tables[table] if row not in gone] == after.tables[table]
    assert len(gone) == 1
    if key == "uid" and column != "uid":
        assert gone[0]["uid"] == 3
    assert after.manifest.unreadable == {table: 1}
    [(told_of, told_key)] = after.unreadable
    assert told_of == table
    shown = gone[0]["mailbox"].hex()
    assert f"mailbox {shown}" in told_key
    node.connection.close()


def test_rows_after_an_invalid_key_are_read(tmp_path: Path) -> None:
    """Reading resumes after the last valid key, so that the inventory has the rows after the invalid one."""
    node = some_mail()
    for name in (b"a", b"b\xff", b"b\xfe", b"c"):
        node.connection.execute("INSERT INTO subscription VALUES ('alice', CAST(? AS TEXT), 1, 5, 'dc1')", (name,))
    with small_limits(batch=1, group=2, file=4):
        taken = write_and_read(node.connection, tmp_path / "to")
    assert [row["name"] for row in taken.tables["subscriptions"]] == ["a", "c"]
    assert taken.unreadable == {("subscriptions", rf"user 'alice', name 'b\udc{byte}'") for byte in ("ff", "fe")}
    node.connection.close()


def test_number_of_named_damaged_rows_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "TOLD_MAX", 2)
    node = some_mail(7)
    node.connection.execute("UPDATE by_uid SET flags = 'x' WHERE uid > 2")
    with small_limits(batch=3, group=10, file=10):
        taken = write_and_read(node.connection, tmp_path / "to")
    assert ([row["uid"] for row in taken.tables["messages"]], len(taken.unreadable)) == ([1, 2], 2)
    assert [event for event in taken.events if isinstance(event, LeftOut)] == [
        LeftOut("messages", 2), LeftOut("messages", 1),  # one for each batch
    ]  # fmt: skip
    assert taken.manifest.unreadable == {"messages": 5}
    node.connection.close()


def test_damaged_page_ends_the_inventory(tmp_path: Path) -> None:
    node = some_mail()
    rows = write_and_read(node.connection, tmp_path / "whole").tables["messages"]
    assert rows
    node.connection.execute("PRAGMA writable_schema = ON")
    node.connection.execute("UPDATE sqlite_master SET rootpage = 9999 WHERE name = 'by_uid'")
    node.connection.execute("PRAGMA writable_schema = RESET")
    with pytest.raises(sqlite3.DatabaseError) as raised:
        write_and_read(node.connection, tmp_path / "to")
    assert is_damage(raised.value)
    assert not (tmp_path / "to" / "inventory.json").exists()
    assert not list((tmp_path / "to").rglob("messages/*"))
    node.connection.close()


def test_flags_of_one_kind_are_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from replicator.store.inventory import flags  # noqa: PLC0415

    unpacked: list[bytes] = []
    original = flags.states_of

    def counted(blob: bytes) -> list[tuple[str, int, str, bool]]:
        unpacked.append(blob)
        return original(blob)

    monkeypatch.setattr(flags, "states_of", counted)
    node = some_mail(0)
    for number in range(50):
        node.now_ms += 7
        node.write(saving(b"text %d" % number, guid(number), INBOX, ["\\Seen", "$" * 40][: number % 3]))
    node.write(lambda tx: sequencer.store(tx, INBOX, UidSet.of([2, 5]), added=[], removed=["\\Seen"]))
    # Of these two, only the time of the first flag differs.
    node.write(lambda tx: sequencer.store(tx, INBOX, UidSet.of([8, 11]), added=["\\Flagged"], removed=[]))
    rows = list(queries.mailbox_rows(node.connection, INBOX.mailbox_id))
    blobs = [blob for (blob,) in node.connection.execute("SELECT flags FROM by_uid ORDER BY uid")]
    reader = FlagReader()
    ends, kinds, times = reader.read(blobs)
    found = [
        {
            reader.table[kind][0]: (time, *reader.table[kind][1:])
            for kind, time in zip(kinds[a:b], times[a:b], strict=True)
        }
        for a, b in pairwise(ends)
    ]
    assert found == [row.flags for row in rows]
    of_one = [blob for blob in unpacked if blob[0] == 0x81]
    assert len(of_one) == 2  # one that is set, and one that is not
    node.connection.close()


def test_documented_columns_are_those_of_inventory_tables() -> None:
    document = (Path(__file__).parents[2] / "docs" / "inventory.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in document.split("\n### ")[1:]}
    rows = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)
    told = {table: rows.findall(text.partition("\n## ")[0]) for table, text in sections.items()}
    assert told == {table: [column[:2] for column in columns] for table, columns in TABLES.items()}


def test_keys_are_columns_of_their_tables() -> None:
    assert KEYS.keys() == TABLES.keys()
    for table, columns in TABLES.items():
        assert all(name in key_of(table, tuple(range(len(columns)))) for name in KEYS[table])
