"""Disk space that an inventory must leave free, since the disk may be the node's own.

A node refuses its clients' changes only when its disk is full, so an inventory stops well before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from replicator.store.inventory.errors import TargetError

RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 20  # 1/20 of the file system, if that is more

LookAt = Callable[[Path], os.statvfs_result]


def check_room(directory: Path, look_at: LookAt = os.statvfs) -> None:
    """Raise TargetError if less than the reserve is free for a user other than root. Raises OSError."""
    state = look_at(directory)
    free_bytes, all_bytes = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    reserve_bytes = max(RESERVE_BYTES, all_bytes // RESERVE_SHARE)
    if all_bytes and free_bytes < reserve_bytes:  # some file systems do not report their size
        raise TargetError(
            f"{directory} has only {_gib(free_bytes)} free, of {_gib(all_bytes)}, and an inventory leaves"
            f" {_gib(reserve_bytes)} free there for all other programs; make room there, or, if this is the"
            " inventory's destination, name one on another disk"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
