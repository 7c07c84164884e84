"""Disk space that an inventory must leave free, since the disk may be the node's own."""

from __future__ import annotations

import os
from pathlib import Path

from replicator.runtime.files.disk_room import LookAt, shortage
from replicator.store.inventory.errors import TargetError


def check_room(directory: Path, look_at: LookAt = os.statvfs) -> None:
    """Raise TargetError if less than the reserve is free for a user other than root. Raises OSError."""
    if (short := shortage(directory, look_at)) is not None:
        raise TargetError(
            f"{directory} has {short}, and an inventory leaves {short.reserve} free there for all other programs; make"
            " room there, or, if this is the inventory's destination, name one on another disk"
        )
