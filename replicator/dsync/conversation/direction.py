"""The side or sides of a sync that take over changes."""

from __future__ import annotations

from enum import Enum, auto


class Direction(Enum):
    """The side or sides that take over changes."""

    BOTH = auto()
    HERE = auto()  # the peer stays as it is
    BACKUP_HERE = auto()  # and this side becomes as the peer is
    THERE = auto()
