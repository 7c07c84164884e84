"""Free disk space, and how much of it a node leaves where it writes what it can do without.

A node refuses its clients' changes only when its disk is full, so inventories and search texts stop well before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 20  # 1/20 of the file system, if that is more

LookAt = Callable[[Path], os.statvfs_result]


class Shortage(NamedTuple):
    """A file system with less than the reserve free for a user other than root."""

    free_bytes: int
    all_bytes: int
    reserve_bytes: int

    def __str__(self) -> str:
        """Describe it in words that follow `DIRECTORY has`."""
        return f"only {_gib(self.free_bytes)} free, of {_gib(self.all_bytes)}"

    @property
    def reserve(self) -> str:
        """The reserve in words."""
        return _gib(self.reserve_bytes)


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The file system of a directory. `free_bytes`: for a user other than root. `is_short`: less than the reserve."""

    directory: str
    free_bytes: int
    all_bytes: int
    is_short: bool


def disk_rooms(directories: Iterable[Path], look_at: LookAt = os.statvfs) -> tuple[DiskRoom, ...]:
    """Return the file systems of these directories, each once, under the first directory. Blocks.

    Directories that cannot be examined are left out, as are file systems that do not report their size.
    """
    rooms: dict[int, DiskRoom] = {}
    for directory in directories:
        with suppress(OSError):
            state, device = look_at(directory), directory.stat().st_dev
            free_bytes, all_bytes = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
            if all_bytes:
                is_short = shortage(directory, lambda _: state) is not None  # noqa: B023 (called at once)
                rooms.setdefault(device, DiskRoom(str(directory), free_bytes, all_bytes, is_short))
    return tuple(rooms.values())


def shortage(directory: Path, look_at: LookAt = os.statvfs) -> Shortage | None:
    """Return the shortage in the directory's file system, None if there is none. Blocks. Raises OSError."""
    state = look_at(directory)
    free_bytes, all_bytes = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    reserve_bytes = max(RESERVE_BYTES, all_bytes // RESERVE_SHARE)
    is_short = all_bytes and free_bytes < reserve_bytes  # some file systems do not report their size
    return Shortage(free_bytes, all_bytes, reserve_bytes) if is_short else None


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
