"""Inventories that are written in this process, and read back by their layout alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from replicator.runtime.files.disk_room import LookAt
from replicator.store.inventory.conversation import Event, MailboxName, Order, Unreadable
from replicator.store.inventory.targets import Directory, Target
from replicator.store.inventory.writing import InventoryWriter
from resync.inventory import FORMAT, FORMAT_KEY, MANIFEST, TABLES, InventoryManifest, manifest_from, part_name

Rows = list[dict[str, Any]]

ORDER = Order("node.db", "/nowhere", None, "/nowhere", False, "mail", "dc1", "dc1.a")  # noqa: FBT003


@dataclass
class WrittenInventory:
    """An inventory as it was read back, and the events of its writing."""

    tables: dict[str, Rows]
    manifest: InventoryManifest
    events: list[Event]

    @property
    def unreadable(self) -> set[tuple[str, str]]:
        return {(event.table, event.key) for event in self.events if isinstance(event, Unreadable)}


@dataclass
class Listener:
    """Record events, and call `action` at each event of type `at`."""

    at: type[object] | None = None
    action: Callable[[], object] = lambda: None
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.at is not None and isinstance(event, self.at):
            self.action()


def dc7(names: Sequence[MailboxName]) -> list[str | None]:
    """Return dc7 as the master of each mailbox, and None for trees."""
    return ["dc7" if uidvalidity else None for _, _, uidvalidity in names]


def empty_disk(_directory: Path) -> os.statvfs_result:
    """Return the state of an empty disk."""
    return disk(free_bytes=1 << 50, all_bytes=1 << 50)


def disk(free_bytes: int, all_bytes: int) -> os.statvfs_result:
    """Return the state of a disk with blocks of 1 KiB, on which root has more space than others."""
    blocks, free = all_bytes >> 10, free_bytes >> 10
    return os.statvfs_result((4096, 1024, blocks, blocks, free, 0, 0, 0, 0, 255))


def write_and_read(
    connection: sqlite3.Connection, to: Path, listener: Listener | None = None, look_at: LookAt = empty_disk
) -> WrittenInventory:
    """Write an inventory of the database, and read it back."""
    target: Target = Directory(to, look_at)
    target.prepare(overwrite=False)
    listener = listener or Listener()
    InventoryWriter(connection, target, listener, dc7).write(ORDER)
    files = {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()}
    return WrittenInventory(*read_back(files), listener.events)


def read_back(files: dict[str, bytes]) -> tuple[dict[str, Rows], InventoryManifest]:
    """Return the tables and the manifest of an inventory, given its files. Assert that it has no others."""
    manifest = manifest_from(files.pop(MANIFEST))
    tables: dict[str, Rows] = {}
    for table, columns in TABLES.items():
        names = sorted(name for name in files if name.startswith(f"{table}/"))
        assert names == [part_name(table, number) for number in range(len(names))] != []
        tables[table] = []
        for name in names:
            found = pq.read_table(BytesIO(files.pop(name)))
            assert found.schema.names == [column.name for column in columns]
            assert [one.nullable for one in found.schema] == [column.nullable for column in columns]
            assert (found.schema.metadata or {})[FORMAT_KEY.encode()] == str(FORMAT).encode()
            tables[table] += found.to_pylist()
    assert not files
    assert {table: len(rows) for table, rows in tables.items()} == manifest.rows
    return tables, manifest
