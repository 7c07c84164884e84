"""A store in memory without threads: the real writer, called directly. Tests can make thousands of them."""

import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from protocol.commands import Parts
from protocol.values import Dot
from replicator.config import LimitsConfig
from replicator.runtime.environment import run_in_thread
from replicator.store.db import queries, schema
from replicator.store.db.damage import Damage
from replicator.store.db.transaction import Commit, Logged, Transaction
from replicator.store.db.writer import Writer, _Job
from replicator.store.log import apply
from resync.entry import Entry
from tests.bodies import stored_of

T = TypeVar("T")


class MemoryNode:
    """A node's database in memory. `write` does what `Store.write` does, but at once."""

    def __init__(self, origin: str, now_ms: int = 1_000_000, limits: LimitsConfig | None = None) -> None:
        self.origin = origin
        self.now_ms = now_ms
        self.random = random.Random(origin)
        self.commits: list[Commit] = []
        self.connection = schema.open_writer(Path(":memory:"))

        async def publish(commit: Commit) -> None:
            raise AssertionError(f"{commit} is published by `write`")

        self._writer = Writer(
            self.connection,
            origin=origin,
            clock_ms=lambda: self.now_ms,
            run_in_thread=run_in_thread,
            publish=publish,
            damage=Damage(Path(":memory:"), lambda: self.now_ms),
            limits=limits,
        )

    def write(self, work: Callable[[Transaction], T]) -> T:
        job = _Job(work)
        self.commits += self._writer._write([cast("_Job[object]", job)])
        return job.outcome()

    def read_anew(self) -> None:
        """Make the writer forget what it has cached of the database."""
        self._writer._undo()

    def write_together(self, works: Sequence[Callable[[Transaction], object]]) -> list[Exception | None]:
        """Write the jobs in one batch, and return the error of each."""
        jobs = [_Job(work) for work in works]
        self.commits += self._writer._write(jobs)
        return [job.error for job in jobs]

    def receive(self, entry: Entry, bodies: Iterable[bytes | Parts] = ()) -> None:
        self.receive_together([(entry, bodies)])

    def receive_together(self, entries: Iterable[tuple[Entry, Iterable[bytes | Parts]]]) -> None:
        """Receive entries in one transaction. Raise the error of the first one that is refused."""
        jobs = [
            _Job(partial(apply.receive, entry=entry, bodies=[stored_of(body) for body in bodies]))
            for entry, bodies in entries
        ]
        self.commits += self._writer._write([cast("_Job[object]", job) for job in jobs])
        for job in jobs:
            job.outcome()

    def take(self, logged: Logged) -> None:
        self.receive(logged.entry, [body.message for body in logged.bodies.values()])

    def log(self, position: int | None = 0) -> list[Logged]:
        assert position is not None, "the log no longer has these entries"
        return queries.log_after(self.connection, position, 1 << 40, 1 << 20, 1 << 40)

    def applied(self, dot: Dot) -> bool:
        row = self.connection.execute("SELECT applied FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
        return bool(row == (1,))

    def guid(self) -> bytes:
        return self.random.randbytes(16)

    def digests(self) -> dict[bytes, bytes]:
        return digests(self.connection)


def digests(connection: sqlite3.Connection) -> dict[bytes, bytes]:
    """Return the digest of each chain that a node shows."""
    return {chain.id: chain.digest() for chain in queries.chains_of(connection, None)}
