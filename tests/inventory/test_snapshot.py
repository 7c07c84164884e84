"""Inventories as snapshots: each shows one moment of the database, and is complete or does not exist."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import trio

from replicator.store.db import schema
from replicator.store.inventory import parquet, tables, targets
from replicator.store.inventory.arrays import Converter
from replicator.store.inventory.conversation import Begun, MailboxName
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.tables import HEADS_AT_ONCE, SOURCES
from replicator.store.inventory.targets import Directory
from replicator.store.inventory.writing import InventoryWriter
from resync.inventory import InventoryManifest
from tests.inventory import expected
from tests.inventory.reading_back import ORDER, Listener, write_and_read
from tests.store.harness import INBOX, expunging, flagging, guid, open_store, save, saving
from tests.store.memory_node import MemoryNode

SMALL_DISK_BYTES = 64 << 10


async def test_later_changes_are_not_in_the_inventory(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(4):
            await save(store, number)
        before = await store.read(expected.tables)
        context = dict(store.context)

        async def change() -> None:
            await save(store, 99)
            await store.write(expunging(1))
            await store.write(flagging(2, added=["\\Seen"]))

        def write() -> None:
            listener = Listener(Begun, partial(trio.from_thread.run, change))
            with closing(schema.open_reader(tmp_path / "node.db")) as connection:
                taken = write_and_read(connection, tmp_path / "to", listener)
            assert taken.tables == before
            assert taken.manifest.context == context

        await trio.to_thread.run_sync(write)
        assert await store.read(expected.tables) != before


async def test_rows_fill_files_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 3)
    monkeypatch.setattr(parquet, "FILE_ROWS", 6)
    async with open_store(tmp_path) as store:
        for number in range(10):
            await save(store, number)
    with closing(schema.open_reader(tmp_path / "node.db")) as connection:
        write_and_read(connection, tmp_path / "to")
    files = sorted((tmp_path / "to" / "messages").iterdir())
    groups = [pq.ParquetFile(file).metadata for file in files]
    assert [[one.row_group(at).num_rows for at in range(one.num_row_groups)] for one in groups] == [[3, 3], [3, 1]]
    assert {one.row_group(0).column(0).compression for one in groups} == {"ZSTD"}


async def test_large_rows_fill_row_groups_and_files_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context has an origin for each run of each node, and memory must not grow with their number."""
    monkeypatch.setattr(tables, "BATCH_ROWS", 1)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    monkeypatch.setattr(parquet, "FILE_ROWS", 12)
    async with open_store(tmp_path) as store:
        for number in range(10):
            await save(store, number)
    with closing(schema.open_reader(tmp_path / "node.db")) as connection:
        rows = write_and_read(connection, tmp_path / "one").tables["messages"]
        one_row = Converter("messages").batch(connection.execute(SOURCES["messages"].select).fetchmany(1)).nbytes
        monkeypatch.setattr(parquet, "GROUP_BYTES", one_row + 1)
        assert write_and_read(connection, tmp_path / "to").tables["messages"] == rows
    files = [pq.ParquetFile(file).metadata for file in sorted((tmp_path / "to" / "messages").iterdir())]
    assert [[one.row_group(at).num_rows for at in range(one.num_row_groups)] for one in files] == [[2, 2, 2], [2, 2]]


def test_heads_and_masters_are_read_in_batches(tmp_path: Path) -> None:
    """Each head may have a large context."""
    node, asked = MemoryNode("dc1.a"), list[int]()
    node.write(saving(b"text", guid(1)))
    columns = "user, uidvalidity, uidnext, highestmodseq, context, messages, unseen, size_bytes, fingerprint, risen"
    node.connection.execute(
        f"WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {HEADS_AT_ONCE})"
        f" INSERT INTO chain (id, {columns}) SELECT randomblob(16), {columns} FROM n, chain WHERE id = ?",
        (INBOX.mailbox_id,),
    )

    def masters(names: Sequence[MailboxName]) -> list[str | None]:
        asked.append(len(names))
        return [None] * len(names)

    target = Directory(tmp_path / "to")
    target.prepare(overwrite=False)
    InventoryWriter(node.connection, target, Listener(), masters).write(ORDER)
    assert asked == [HEADS_AT_ONCE, 1]
    assert pq.read_table(tmp_path / "to" / "heads").num_rows == HEADS_AT_ONCE + 1
    node.connection.close()


def test_error_that_ends_the_transaction_is_reported(tmp_path: Path) -> None:
    """SQLite ends the transaction when the disk fails (`sqlite3VdbeHalt`), so there is nothing to commit."""
    node = MemoryNode("dc1.a")
    node.write(saving(b"text", guid(1)))

    def fails() -> None:
        node.connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        write_and_read(node.connection, tmp_path / "to", Listener(Begun, fails))
    node.connection.close()


def test_new_directories_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(targets, "_sync", synced.append)
    Directory(tmp_path / "new" / "newer" / "newest").prepare(overwrite=False)
    assert synced == [tmp_path / "new" / "newer", tmp_path / "new", tmp_path]
    assert [(tmp_path / "new" / "newer" / "newest").stat().st_mode & 0o777] == [0o700]


def test_only_an_incomplete_inventory_is_overwritten(tmp_path: Path) -> None:
    to = tmp_path / "to"
    Directory(to).prepare(overwrite=False)
    Directory(to).prepare(overwrite=False)  # empty
    (to / "heads").mkdir()
    (to / "heads" / "part-00000.parquet").touch()
    (to / "heads" / ".part-00001.parquet.unfinished").touch()
    with pytest.raises(
        TargetError, match=r"holds an incomplete inventory, .* interrupted, start again with `--overwrite`"
    ):
        Directory(to).prepare(overwrite=False)
    for name in ("letter.txt", "heads/part-0.parquet"):
        (to / name).touch()
        with pytest.raises(TargetError, match=f"holds other things, such as '{name}'"):
            Directory(to).prepare(overwrite=True)
        (to / name).unlink()
    (to / "inventory.json").touch()
    with pytest.raises(TargetError, match="holds a complete inventory"):
        Directory(to).prepare(overwrite=True)
    (to / "inventory.json").unlink()
    Directory(to).prepare(overwrite=True)
    assert not [path for path in to.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["others", "heads/others"])
def test_foreign_directory_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "part-00000.parquet").touch()
    with pytest.raises(TargetError, match=f"holds other things, such as '{name}'"):
        Directory(tmp_path).prepare(overwrite=True)


def test_nothing_is_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to" / "heads").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match="holds other things, such as 'heads'"):
        Directory(tmp_path / "to").prepare(overwrite=True)


async def test_inventory_interrupted_at_its_end_can_be_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has died, so that it could not remove its files."""
    async with open_store(tmp_path) as store:
        await save(store, 1)
    with closing(schema.open_reader(tmp_path / "node.db")) as connection:
        with monkeypatch.context() as patch, suppress(ZeroDivisionError):
            patch.setattr(Path, "unlink", lambda *_, **__: None)
            patch.setattr(InventoryManifest, "to_json", lambda _: 1 // 0)
            write_and_read(connection, tmp_path / "to")
        assert (tmp_path / "to" / ".inventory.json.unfinished").exists()
        with pytest.raises(TargetError, match="`--overwrite`"):
            Directory(tmp_path / "to").prepare(overwrite=False)
        Directory(tmp_path / "to").prepare(overwrite=True)
        assert write_and_read(connection, tmp_path / "to").tables["messages"]


def test_second_of_two_simultaneous_inventories_is_refused(tmp_path: Path) -> None:
    """Both inventories have found the place empty."""
    one, other = Directory(tmp_path / "to"), Directory(tmp_path / "to")
    one.prepare(overwrite=False)
    other.prepare(overwrite=False)
    name = "heads/part-00000.parquet"

    def refused() -> None:
        with pytest.raises(TargetError, match="another inventory has just been started in"), other.writing(name):
            raise AssertionError("it was begun")

    with one.writing(name) as file:
        file.write(b"one")
        refused()
    refused()
    assert [path.name for path in (tmp_path / "to" / "heads").iterdir()] == ["part-00000.parquet"]
    assert (tmp_path / "to" / name).read_bytes() == b"one"


def test_file_appears_only_when_complete(tmp_path: Path) -> None:
    target = Directory(tmp_path / "to")
    target.prepare(overwrite=False)
    aside: list[str] = []
    with suppress(ZeroDivisionError), target.writing("heads/part-00000.parquet") as file:
        file.write(b"half")
        aside += [path.name for path in (tmp_path / "to" / "heads").iterdir()]
        raise ZeroDivisionError
    assert aside == [".part-00000.parquet.unfinished"]
    assert not list((tmp_path / "to" / "heads").iterdir())
    assert (target.files, target.size_bytes) == (0, 0)


def test_files_are_private_to_their_owner(tmp_path: Path) -> None:
    """Others may read the directory, and the files have names of users."""
    (tmp_path / "to").mkdir()
    (tmp_path / "to").chmod(0o755)
    target, before = Directory(tmp_path / "to"), os.umask(0)
    try:
        target.prepare(overwrite=False)
        with target.writing("heads/part-00000.parquet") as file:
            modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "to" / "heads").iterdir()]
            file.write(b"alice")
    finally:
        os.umask(before)
    modes += [path.stat().st_mode & 0o777 for path in (tmp_path / "to" / "heads").iterdir()]
    assert modes == [0o600, 0o600]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "inventory", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is left out: mounting it needs root")
async def test_full_disk_leaves_no_inventory(tmp_path: Path, small_disk: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, 1)
    (small_disk / "ballast").write_bytes(bytes(SMALL_DISK_BYTES - (12 << 10)))
    with closing(schema.open_reader(tmp_path / "node.db")) as connection:
        with pytest.raises(OSError, match="No space left on device"):
            write_and_read(connection, small_disk / "to")
        assert list(small_disk.rglob("*")) == [small_disk / "ballast"]  # noqa: ASYNC240
        (small_disk / "ballast").unlink()
        assert write_and_read(connection, small_disk / "to").tables["messages"]
