"""Damage to `node.db` on disk: the node refuses to start or runs on, but never numbers changes from damaged rows."""

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from protocol.values import UidSet
from replicator.errors import DataError, UnavailableError
from replicator.runtime.environment import Environment
from replicator.store.db import queries, schema
from replicator.store.db.damage import Damage, DatabaseDamagedError
from replicator.store.store import Store
from tests.effort import first, spread
from tests.store.damaging import damage, leaves_of, overwrite, zero_middle
from tests.store.harness import INBOX, flagging, guid, open_store, save, saving

SIZE = 800  # messages, which fill at least three pages of the smallest index
LARGE = ["log", "sqlite_autoindex_log_1", "by_uid", "by_guid", "content", "sqlite_autoindex_content_1"]
SMALL = ["origin", "chain", "folder", "waiting", "sqlite_sequence", "identity", "chain_user", "manifest", "clock"]


async def full_store(tmp_path: Path) -> Path:
    """Make a database with several pages in each large table."""
    async with open_store(tmp_path) as store:
        jobs = [saving(b"text %d" % number, guid(number)) for number in range(SIZE)]
        await store.write(lambda tx: [job(tx) for job in jobs])
    return tmp_path / "node.db"


async def refusal_of(path: Path) -> str:
    """Return the error with which the store refuses to open."""
    with pytest.raises(DataError) as caught:
        async with Store.open(path, "dc1.b", Environment()):
            pass
    assert isinstance(caught.value, DatabaseDamagedError), caught.value
    assert str(path) in str(caught.value)
    return str(caught.value)


def overwrite_header(path: Path) -> None:
    overwrite(path, 1, b"\xa5" * 100)


def overwrite_all(path: Path) -> None:
    path.write_bytes(b"From: someone\r\n" * 1000)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 3 * schema.PAGE_BYTES + 100])


@pytest.mark.parametrize("harm", [overwrite_header, overwrite_all, truncate], ids=lambda harm: harm.__name__)
async def test_incomplete_database_file_is_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = await full_store(tmp_path)
    harm(path)
    before = path.read_bytes()
    assert "the database is damaged" in await refusal_of(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("tree", first(2, SMALL))
async def test_damage_to_heads_and_contexts_is_refused(tmp_path: Path, tree: str) -> None:
    path = await full_store(tmp_path)
    overwrite(path, leaves_of(path, tree)[-1])
    await refusal_of(path)


@pytest.mark.parametrize(
    "change",
    spread(
        5,
        [
            "origin SET name = 'dc1'",
            "origin SET seq = 'x'",
            "origin SET seq = -1",
            "origin SET collected = seq + 1",
            "origin SET offset_bytes = x'00'",
            "origin SET name = CAST(x'ff2e41' AS TEXT)",
            "sqlite_sequence SET seq = 'x'",
            "chain SET head_seq = 'x'",
            "chain SET context = 7",
        ],
    ),
)
async def test_invalid_heads_and_contexts_are_refused(tmp_path: Path, change: str) -> None:
    path = await full_store(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(f"UPDATE {change}").rowcount
    await refusal_of(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM origin",
        "DELETE FROM origin WHERE name = 'dc1.a'",
        "DELETE FROM origin WHERE name = 'dc1.b'",
        "UPDATE origin SET seq = seq - 1 WHERE name = 'dc1.a'",
        "UPDATE origin SET seq = 0 WHERE name = 'dc1.c'",
        "UPDATE log SET origin = 'dc1.x' WHERE origin = 'dc1.b' AND seq = 2",
        "UPDATE log SET origin = x'ff' WHERE origin = 'dc1.b' AND seq = 2",
    ],
)
async def test_log_beyond_its_origins_counters_is_refused(tmp_path: Path, statement: str) -> None:
    """Otherwise new entries would get names that the log already has."""
    for run in ("dc1.a", "dc1.b", "dc1.c"):
        async with open_store(tmp_path, run) as store:
            for number in range(3):
                await store.write(saving(b"text", run.encode() + bytes(10) + bytes([number])))
    path = tmp_path / "node.db"
    async with open_store(tmp_path, "dc1.d"):
        pass
    damage(path, statement)
    assert "the log has entries of" in await refusal_of(path)


async def test_missing_entries_do_not_lower_the_counters(tmp_path: Path) -> None:
    path = await full_store(tmp_path)
    damage(path, "DELETE FROM log WHERE seq > 100", "UPDATE log SET seq = 'x' WHERE seq = 7")
    async with Store.open(path, "dc1.b", Environment()) as store:
        assert store.context == {"dc1.a": SIZE}


async def test_entry_whose_dot_the_log_already_has_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = await full_store(tmp_path)
    async with Store.open(path, "dc1.a", Environment()) as store:
        damage(path, "UPDATE origin SET seq = seq - 5")
        with pytest.raises(ZeroDivisionError):
            await store.write(lambda _: 1 // 0)  # makes the writer forget what it has cached
        for _ in range(2):
            with pytest.raises(DatabaseDamagedError):
                await save(store, SIZE)
        assert store.damage.found is not None
        assert "log.origin, log.seq" in store.damage.found
        assert len(caplog.messages) == 1
        assert "run `replicator rebuild --from-peers`" in caplog.text
        assert len((await store.view(INBOX)).messages) == SIZE


async def test_foreign_tables_are_ignored(tmp_path: Path) -> None:
    path = await full_store(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ANALYZE")
        connection.execute("CREATE TABLE theirs (anything)")
        connection.execute("INSERT INTO theirs VALUES (x'00')")
    async with open_store(tmp_path, "dc1.b") as store:
        assert await save(store, SIZE) == SIZE + 1


@pytest.mark.parametrize("tree", first(2, LARGE))
@pytest.mark.parametrize("which", [0, -1])
async def test_damage_at_the_ends_of_large_tables_is_refused(tmp_path: Path, tree: str, which: int) -> None:
    path = await full_store(tmp_path)
    overwrite(path, leaves_of(path, tree)[which])
    await refusal_of(path)


@pytest.mark.parametrize("tree", spread(2, LARGE))
async def test_damage_in_the_middle_fails_its_readers_and_is_logged_once(
    tmp_path: Path, tree: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = await full_store(tmp_path)
    zero_middle(path, tree)
    query = "SELECT SUM(length(hash)) FROM content ORDER BY hash" if tree.endswith("content_1") else None
    async with Store.open(path, "dc1.b", Environment()) as store:
        assert store.damage.found is None
        for _ in range(2):
            with pytest.raises(DatabaseDamagedError):
                await store.read(lambda reader: _read_all(reader, tree, query))
        async with store.reader() as reader:
            with pytest.raises(DatabaseDamagedError):
                await reader.read(lambda reader: _read_all(reader, tree, query))
        assert store.damage.found == "database disk image is malformed"
        assert len(caplog.messages) == 1
        assert "run `replicator rebuild --from-peers`" in caplog.text
        assert await save(store, SIZE) == SIZE + 1  # both ends are whole


def _read_all(connection: sqlite3.Connection, tree: str, query: str | None) -> None:
    if tree == "sqlite_autoindex_log_1":
        query = f"SELECT COUNT(seq) FROM log INDEXED BY {tree}"
    connection.execute(query or f"SELECT * FROM {tree}").fetchall()


async def test_only_changes_that_meet_damage_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = await full_store(tmp_path)
    zero_middle(path, "by_uid")
    async with Store.open(path, "dc1.b", Environment()) as store:
        with pytest.raises(UnavailableError, match="a part of this node's database is damaged"):
            await store.write(flagging(*range(1, SIZE + 1), added=["\\Seen"]))
        assert (await store.write(flagging(1, SIZE, added=["\\Seen"]))).refused == UidSet()
        assert caplog.record_tuples[0][1] == logging.ERROR
        context = await store.read(queries.log_context)
        assert context["dc1.b"] == 1


async def test_broken_end_of_the_write_ahead_log_is_ignored(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    async with open_store(tmp_path) as store:
        for number in range(20):
            await save(store, number)
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"node.db{suffix}", kept / f"node.db{suffix}")
    wal = kept / "node.db-wal"
    data = wal.read_bytes()
    wal.write_bytes(data[: len(data) * 2 // 3] + b"\x5a" * (len(data) // 3))
    async with open_store(kept, "dc1.b") as store:
        shown = len((await store.view(INBOX)).messages)
        assert 0 < shown < 20
        assert await save(store, 100) == shown + 1


async def test_empty_file_is_a_new_database_unless_it_has_a_wal(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    path.touch()
    wal = tmp_path / "node.db-wal"
    wal.write_bytes(b"something")
    assert "is empty, but node.db-wal is not" in await refusal_of(path)
    assert wal.read_bytes() == b"something"
    wal.unlink()
    async with open_store(tmp_path) as store:
        assert await save(store, 1) == 1


def test_failure_that_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times_ms = iter((0, 30_000, 59_999, 60_000, 61_000, 61_000))
    damage = Damage(Path("node.db"), lambda: next(times_ms))
    failure = sqlite3.OperationalError("disk I/O error")
    for _ in range(5):
        assert "disk I/O error" in str(damage.translated(failure))
    damage.translated(sqlite3.OperationalError("interrupted"))
    assert [record.getMessage() for record in caplog.records] == [
        "node.db failed: disk I/O error",
        "node.db failed: disk I/O error",
        "node.db failed: interrupted",
    ]
    assert damage.found is None
