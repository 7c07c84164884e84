"""Entries of other nodes for which this node's disk has no room: which they are, and how much room there is.

What came after such an entry on the same link waits with it, and the node serves what it has: unless someone is told,
nobody learns why it does not go on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.values import Dot
from replicator.environment import Environment
from replicator.status import NoRoom


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An entry, and the directory in which it finds no room."""

    dot: Dot
    user: str
    size_bytes: int
    directory: Path
    since_ms: int


class DiskShortage:
    """Belongs to the event loop. `data` is where the database lies, `attachments` where parts of large messages do."""

    def __init__(self, data: Path, attachments: Path, environment: Environment) -> None:
        self.data = data
        self.attachments = attachments
        self._environment = environment
        self._waiting: dict[object, list[_Waiting]] = {}  # by who waits

    def note(self, who: object, sizes: Mapping[Dot, tuple[str, int]], directory: Path) -> None:
        """These entries, with their users and the sizes of what they bring, are what `who` has no room for now."""
        before = {waiting.dot: waiting.since_ms for waiting in self._waiting.pop(who, [])}
        if sizes:
            now_ms = self._environment.clock_ms()
            self._waiting[who] = [
                _Waiting(dot, user, size_bytes, directory, before.get(dot, now_ms))
                for dot, (user, size_bytes) in sizes.items()
            ]

    def __len__(self) -> int:
        return len(self._first())

    def _first(self) -> dict[Dot, _Waiting]:
        """Each once: it may come on several links."""
        found = sorted((one for some in self._waiting.values() for one in some), key=lambda one: -one.since_ms)
        return {waiting.dot: waiting for waiting in found}

    async def told(self) -> tuple[NoRoom, ...]:
        """The first first."""
        waiting = sorted(self._first().values(), key=lambda one: one.since_ms)
        free = {
            directory: await self._environment.run_until_cancelled(partial(free_bytes, directory))
            for directory in {one.directory for one in waiting}
        }
        return tuple(
            NoRoom(
                directory=str(one.directory),
                free_bytes=free[one.directory],
                entry=f"{one.dot.origin} {one.dot.seq}",
                user=one.user,
                size_bytes=one.size_bytes,
                since_ms=one.since_ms,
            )
            for one in waiting
        )


def free_bytes(directory: Path) -> int | None:
    """Room that is left in its file system, for those without privileges; None: that is not known. Blocks."""
    try:
        state = os.statvfs(directory)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize if state.f_blocks else None
