"""Entries of other nodes that do not fit on this node's disk, and the free space that is left, for the status.

Later entries on the same link wait behind such an entry, while the node goes on serving the mail that it has. Without
this report, operators could not tell why the node no longer keeps up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.values import Dot
from replicator.runtime.environment import Environment
from replicator.status import NoRoom


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An entry, and the directory that has no room for it."""

    dot: Dot
    user: str
    size_bytes: int
    directory: Path
    since_ms: int


class DiskShortage:
    """The entries that wait for disk space. Belongs to the event loop.

    `data` is the directory of the database, `attachments` that of the attachments of large messages.
    """

    def __init__(self, data: Path, attachments: Path, environment: Environment) -> None:
        self.data = data
        self.attachments = attachments
        self._environment = environment
        self._waiting: dict[object, list[_Waiting]] = {}  # reporting object (`who`) -> its waiting entries

    def note(self, who: object, sizes: Mapping[Dot, tuple[str, int]], directory: Path) -> None:
        """Replace the entries for which `who` has no room now; `sizes`: dot -> user, and octets that the entry needs.

        An entry that was noted before keeps the time at which it began to wait.
        """
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
        """Return each entry once, with the time when it first waited: it may arrive on several links."""
        found = sorted((one for some in self._waiting.values() for one in some), key=lambda one: -one.since_ms)
        return {waiting.dot: waiting for waiting in found}

    async def told(self) -> tuple[NoRoom, ...]:
        """Return the waiting entries for the status, the longest waiting first."""
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
    """Return the octets free for unprivileged users in the directory's file system; None if unknown. Blocks."""
    try:
        state = os.statvfs(directory)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize if state.f_blocks else None
