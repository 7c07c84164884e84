"""The room that an inventory leaves on a disk: it may be the node's own, which must not be filled by it.

A node refuses its clients' changes only when its disk is full: so an inventory ends well before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from replicator.store.inventory.errors import TargetError

RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 20  # a 20th of the file system, where that is more

LookAt = Callable[[Path], os.statvfs_result]


def check_room(directory: Path, look_at: LookAt = os.statvfs) -> None:
    """Raises TargetError if less than the reserve is free there, for whoever is not root; OSError."""
    state = look_at(directory)
    free_bytes, all_bytes = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    reserve_bytes = max(RESERVE_BYTES, all_bytes // RESERVE_SHARE)
    if all_bytes and free_bytes < reserve_bytes:  # some file systems do not say how large they are
        raise TargetError(
            f"{directory} has only {_gib(free_bytes)} free, of {_gib(all_bytes)}, and an inventory leaves"
            f" {_gib(reserve_bytes)} there to whatever else writes to that disk; make room there, or, if it is the"
            " place that was named, name one on another disk"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
