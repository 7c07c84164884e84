from __future__ import annotations

import os
from pathlib import Path

from replicator.runtime.files.disk_room import RESERVE_BYTES, DiskRoom, disk_rooms


def file_system(free_blocks: int, blocks: int) -> os.statvfs_result:
    """Return the state of a file system with blocks of 1 MiB, of which root has some more."""
    return os.statvfs_result((4096, 1 << 20, blocks, free_blocks + 7, free_blocks, 0, 0, 0, 0, 255))


def test_file_system_of_several_directories_counts_once(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    rooms = disk_rooms([tmp_path, tmp_path / "inner"], lambda _: file_system(50_000, 100_000))
    assert rooms == (DiskRoom(str(tmp_path), 50_000 << 20, 100_000 << 20, is_short=False),)


def test_short_is_what_is_below_the_reserve(tmp_path: Path) -> None:
    for free, is_short in ((RESERVE_BYTES >> 20, False), ((RESERVE_BYTES >> 20) - 1, True)):
        [room] = disk_rooms([tmp_path], lambda _, free=free: file_system(free, 10_000))  # type: ignore[misc]
        assert (free, room.is_short) == (free, is_short)


def test_what_does_not_answer_is_left_out(tmp_path: Path) -> None:
    assert disk_rooms([tmp_path / "none"]) == ()
    assert disk_rooms([tmp_path], lambda _: file_system(0, 0)) == ()
    [room] = disk_rooms([tmp_path / "none", tmp_path])
    assert 0 <= room.free_bytes <= room.all_bytes
