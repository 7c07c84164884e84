"""An inventory does not fill a disk that others write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicator.store.inventory import parquet
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.room import check_room
from replicator.store.inventory.targets import Bucket, Directory
from tests.inventory.reading_back import disk, write_and_read
from tests.store.harness import guid, saving
from tests.store.memory_node import MemoryNode

GIB = 1 << 30


@pytest.mark.parametrize(
    ("all_bytes", "reserve_bytes"), [(GIB // 2, GIB), (10 * GIB, GIB), (20 * GIB, GIB), (1000 * GIB, 50 * GIB)]
)
def test_reserve_of_disk_space_stays_free(tmp_path: Path, all_bytes: int, reserve_bytes: int) -> None:
    check_room(tmp_path, lambda _: disk(reserve_bytes, all_bytes))
    with pytest.raises(TargetError, match=r"GiB free, of .* GiB free there for all .*; make room there, or"):
        check_room(tmp_path, lambda _: disk(reserve_bytes - 1024, all_bytes))


def test_file_system_of_unknown_size_is_accepted(tmp_path: Path) -> None:
    check_room(tmp_path, lambda _: disk(0, 0))


def test_disk_that_fills_up_within_a_file_ends_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is one of messages, of which the first row groups are written. The whole inventory is removed."""
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    node, to, looked = MemoryNode("dc1.a"), tmp_path / "to", list[Path]()
    for number in range(9):
        node.write(saving(b"text", guid(number)))

    def filling(directory: Path) -> os.statvfs_result:
        looked.append(directory)
        is_within = len(list((to / "messages").glob(".*"))) == 1
        groups.extend([1] * is_within)
        return disk(GIB - 1024, 2 * GIB) if len(groups) > 3 else disk(GIB, 2 * GIB)

    groups: list[int] = []
    with pytest.raises(TargetError, match=f"{to} has only 1.00 GiB free, of 2.00 GiB"):
        write_and_read(node.connection, to, look_at=filling)
    assert (set(looked), len(groups)) == ({to}, 4)
    assert not to.exists()
    assert len(write_and_read(node.connection, to).tables["messages"]) == 9
    node.connection.close()


def test_no_file_is_begun_without_disk_space(tmp_path: Path) -> None:
    """This holds for the files of a bucket too, which are written to the node's disk first."""
    looks = iter([disk(GIB, GIB), disk(0, GIB)])
    directory = Directory(tmp_path / "to", lambda _: next(looks))
    directory.prepare(overwrite=False)
    with directory.writing("inventory.json") as file:
        file.write(b"{}")
    scratch: list[Path] = []

    def full(where: Path) -> os.statvfs_result:
        scratch.append(where)
        return disk(0, GIB)

    for target in (directory, Bucket("s3://b/p", "http://127.0.0.1:9", tmp_path, full)):
        with pytest.raises(TargetError, match=r"only 0.00 GiB free"), target.writing("heads/part-00000.parquet"):
            raise AssertionError("it was begun")
    assert scratch == [tmp_path]
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["inventory.json"]
