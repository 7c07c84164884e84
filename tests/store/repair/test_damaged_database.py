import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from protocol.values import Dot
from replicator.errors import DataError
from replicator.store.repair import damaged_database
from tests.store.damaging import leaves_of, overwrite
from tests.store.harness import guid, open_store, save, saving

SIZE = 400


async def full_database(tmp_path: Path) -> Path:
    async with open_store(tmp_path) as store:
        jobs = [saving(b"text %d" % number, guid(number)) for number in range(SIZE)]
        await store.write(lambda tx: [job(tx) for job in jobs])
    return tmp_path / "node.db"


def find_entries(path: Path, known: dict[str, int] | None = None) -> tuple[list[Dot], int]:
    """Return the dots of the entries that come with their bodies, and the number of unreadable rows."""
    with damaged_database.opened(path) as damaged:
        entries = [item for part in damaged.log(known or {}) for item in part.entries]
        assert all(len(bodies) == 1 for _, bodies in entries)
        return [entry.dot for entry, _ in entries], damaged.unreadable


async def test_all_unknown_entries_of_a_whole_database_are_found(tmp_path: Path) -> None:
    path = await full_database(tmp_path)
    before = path.read_bytes()
    assert find_entries(path, {"dc1.a": 300}) == ([Dot("dc1.a", seq) for seq in range(301, SIZE + 1)], 0)
    with damaged_database.opened(path) as damaged:
        assert (damaged.context(), damaged.collected()) == ({"dc1.a": SIZE}, {"dc1.a": 0})
    assert path.read_bytes() == before


@pytest.mark.parametrize("lacking", [["also", "saved_ms"], ["saved_ms"]])
async def test_messages_of_a_database_of_an_earlier_version_are_found(tmp_path: Path, lacking: Sequence[str]) -> None:
    path = await full_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        for column in lacking:
            connection.execute(f"ALTER TABLE by_uid DROP COLUMN {column}")
    with damaged_database.opened(path) as damaged:
        (chain,) = damaged.mailboxes()
        assert len(damaged.rows(chain)) == SIZE


@pytest.mark.parametrize("which", [0, 3, -1])
async def test_entries_around_an_unreadable_page_are_found(tmp_path: Path, which: int) -> None:
    path = await full_database(tmp_path)
    overwrite(path, leaves_of(path, "log")[which])
    dots, unreadable = find_entries(path)
    assert 0 < unreadable < SIZE / 4
    assert len(dots) == SIZE - unreadable
    assert dots == sorted(dots)


@pytest.mark.parametrize(
    "change",
    [
        "body = body || x'00'",
        "body = x'c1'",
        "body = 7",
        "time = time + 1",
        "chain = x'00'",
        "seq = 'x'",
        "origin = 7.5",
    ],
)
async def test_contradictory_entry_is_skipped(tmp_path: Path, change: str) -> None:
    path = await full_database(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(f"UPDATE log SET {change} WHERE position = 7").rowcount
    dots, unreadable = find_entries(path)
    assert (len(dots), unreadable, Dot("dc1.a", 7) in dots) == (SIZE - 1, 1, False)


async def test_entries_in_an_intact_write_ahead_log_are_found(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    await full_database(tmp_path)
    async with open_store(tmp_path, "dc1.b") as store:
        await save(store, SIZE)
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"node.db{suffix}", kept / f"node.db{suffix}")
    dots, _ = find_entries(kept / "node.db", {"dc1.a": SIZE})
    assert set(dots) == {Dot("dc1.b", 1)}
    (kept / "node.db-wal").write_bytes(b"\xa5" * 10_000)
    dots, _ = find_entries(kept / "node.db")
    assert set(dots) == {Dot("dc1.a", seq) for seq in range(1, SIZE + 1)}


@pytest.mark.parametrize("content", [b"", b"no database" * 1000, None])
async def test_file_that_is_no_database_gives_no_entries(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "node.db"
    if content is not None:
        path.write_bytes(content)
    assert find_entries(path) == ([], 0)
    with damaged_database.opened(path) as damaged:
        assert (damaged.context(), damaged.body(bytes(32))) == (None if path.exists() else {}, None)
        assert damaged.collected() is None
    assert path.exists() == (content is not None)


@pytest.mark.parametrize("has_log", [False, True])
async def test_database_that_lacks_only_its_magic_is_read_from_a_copy(tmp_path: Path, *, has_log: bool) -> None:
    path = await full_database(tmp_path)
    overwrite(path, 1, b"garbage!garbage!")
    if has_log:
        path.with_name("node.db-wal").write_bytes(b"")
    before = path.read_bytes()
    copy = damaged_database.legible(path)
    dots, unreadable = find_entries(copy)
    assert (set(dots), unreadable) == ({Dot("dc1.a", seq) for seq in range(1, SIZE + 1)}, 0)
    assert (path.read_bytes(), copy != path) == (before, True)
    damaged_database.discard(path)
    assert not copy.exists()


@pytest.mark.parametrize("damage", [b"", b"\xa5" * 100, b"From: someone\r\n" * 8, b"\0" * 100])
async def test_other_damaged_headers_are_not_restored(tmp_path: Path, damage: bytes) -> None:
    path = await full_database(tmp_path)
    overwrite(path, 1, damage)
    assert damaged_database.legible(path) == path
    assert damaged_database.legible(tmp_path / "not there") == tmp_path / "not there"


async def test_failure_to_copy_is_reported(tmp_path: Path) -> None:
    path = await full_database(tmp_path)
    overwrite(path, 1, b"garbage!garbage!")
    path.with_name("node.db-wal").mkdir()
    with pytest.raises(DataError, match="must be copied before it can be read; make room"):
        damaged_database.legible(path)
