"""The connections on which a process reads the database beside the writer, which may be in another process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import trio

from replicator.runtime.environment import ThreadRunner
from replicator.runtime.signals import acquire
from replicator.store.db.damage import Damage

T = TypeVar("T")


class Readers:
    """Shared connections, each for one query at a time, in a thread. Belongs to the event loop.

    Whoever opened the connections closes them.
    """

    def __init__(self, connections: Sequence[sqlite3.Connection], run_in_thread: ThreadRunner, damage: Damage) -> None:
        self._idle = [*connections]
        self._room = trio.Semaphore(len(connections))
        self._run_in_thread = run_in_thread
        self._damage = damage

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query; it sees the last commit. Raises what the query raises, and DatabaseFailedError."""
        await acquire(self._room)
        reader = self._idle.pop()
        try:
            with self._damage.noticed():
                return await self._run_in_thread(partial(query, reader))
        finally:
            self._idle.append(reader)
            self._room.release()
