"""The single database writer: many requests, one transaction, one fsync (group commit).

Jobs are functions of a `Transaction`. While one batch is being written, the next one gathers. If a batch fails, the
writer retries it job by job, so that only the faulty job fails. The writer publishes each commit on the event loop, in
order, before any of the batch's callers resumes.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar, cast

import trio

from replicator.config import LimitsConfig
from replicator.errors import DatabaseFailedError, DiskFullError, HistoryError, MailError, UnavailableError
from replicator.runtime.environment import ThreadRunner
from replicator.runtime.signals import Signal, acquire
from replicator.store.db import schema
from replicator.store.db.damage import Damage, DatabaseDamagedError
from replicator.store.db.tally import NO_COUNT
from replicator.store.db.transaction import Commit, Memory, Transaction
from resync.clock import COUNTER_BITS, FOLLOWED_MAX_MS, HybridClock
from resync.folder_tree import WHOLE_SHARE

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH = 256  # jobs; bounds how long the first job waits for the last
MAX_WAITING = 4096  # jobs; further callers wait before their job is queued


class _Job(Generic[T]):
    """A request, its result, and the event that its caller waits for."""

    def __init__(self, work: Callable[[Transaction], T]) -> None:
        self.work = work
        self.done = trio.Event()
        self.result: T | None = None
        self.error: Exception | None = None

    def run(self, tx: Transaction) -> None:
        """Run the job. Raises what must undo the transaction; a MailError or HistoryError is left for the job's caller.

        Jobs raise those two before they change anything; damage may be met at any point and undoes the transaction.
        """
        try:
            self.result = self.work(tx)
        except DatabaseDamagedError:
            raise
        except (MailError, HistoryError) as error:
            self.error = error

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.result)


class Writer:
    """The owner of the writing connection. `origin` names the entries that this run of the node numbers.

    `limits`: see `Transaction`.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        origin: str,
        clock_ms: Callable[[], int],
        stopwatch_s: Callable[[], float] = time.monotonic,
        run_in_thread: ThreadRunner,
        publish: Callable[[Commit], Awaitable[None]],
        damage: Damage,
        limits: LimitsConfig | None = None,
    ) -> None:
        self._connection = connection
        self._origin = origin
        self._stopwatch_s = stopwatch_s
        self._run_in_thread = run_in_thread
        self._publish = publish
        self._damage = damage
        self._limits = limits or LimitsConfig()
        self.share = WHOLE_SHARE
        """See `Transaction`; counts from the next transaction on."""
        self._clock = HybridClock(clock_ms)
        self._clock.observe(_last_time(connection))
        self._memory = Memory(connection)
        self._waiting: deque[_Job[object]] = deque()
        self._room = trio.Semaphore(MAX_WAITING)
        self._wakeup = Signal()

    async def submit(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in the writer's thread and return its result once it is on disk.

        Raises what `work` raises, DiskFullError, or DatabaseFailedError. If the caller is cancelled, the work may still
        be done.
        """
        await acquire(self._room)
        try:
            job = _Job(work)
            self._waiting.append(cast("_Job[object]", job))
            self._wakeup.set()
            await job.done.wait()
            return job.outcome()
        finally:
            self._room.release()

    @property
    def queued(self) -> int:
        """Number of jobs that wait for their turn, or for a place in the queue; not those that are being written."""
        return len(self._waiting) + self._room.statistics().tasks_waiting

    @property
    def last_time(self) -> int:
        """The time of the latest stamp given out or observed: at least that of everything on disk."""
        return self._clock.last

    async def flush(self) -> None:
        """Return when everything submitted before is on disk or has failed."""
        with suppress(MailError):  # if this empty job cannot be written, earlier jobs have failed too
            await self.submit(lambda _: None)

    async def run(self) -> None:
        """Write until cancelled; the batch being written then is finished first."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                with trio.CancelScope(shield=True):
                    for commit in await self._run_in_thread(partial(self._write, batch)):
                        await self._publish(commit)
                for job in batch:
                    job.done.set()
                if self._waiting:  # whoever goes on now may add its next job to the next batch
                    await trio.lowlevel.checkpoint()

    def _write(self, batch: list[_Job[object]]) -> list[Commit]:
        commit = self._try(batch)
        if commit is not None:
            return [commit]
        if len(batch) == 1:
            return []
        alone = (self._try([job]) for job in batch)
        return [commit for commit in alone if commit is not None]

    def _try(self, jobs: list[_Job[object]]) -> Commit | None:
        """Run the jobs in one transaction. Return None if it was rolled back; every job then has its error."""
        for job in jobs:
            job.error = None
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            tx = Transaction(self._connection, self._memory, self._origin, self._clock, self._limits, share=self.share)
            for job in jobs:
                job.run(tx)
            commit = tx.finish()
            began = self._stopwatch_s()
            self._connection.execute("COMMIT")
            commit.jobs, commit.took_s = len(jobs), self._stopwatch_s() - began
            self._memory.tally, self._memory.count = commit.tally, commit.count
        except Exception as error:  # noqa: BLE001 - the edge where a failed transaction becomes its callers' errors
            self._undo()
            for job in jobs:
                job.error = self._translated(error)
            return None
        return commit

    def _undo(self) -> None:
        count = NO_COUNT  # of a COMMIT that failed, nobody knows whether it was made
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
            count = self._memory.count
        self._memory = Memory(self._connection, count)

    def _translated(self, error: Exception) -> Exception:
        if schema.is_full(error):
            return DiskFullError("the disk is full; nothing was stored")
        if schema.is_failing(error):
            log.error("cannot write the database: %s", error)
            return UnavailableError(f"the disk failed ({error}); the change may or may not have been made; try again")
        if isinstance(error, sqlite3.Error) and not isinstance(error, DatabaseFailedError):
            return self._damage.translated(error)
        return error


def _last_time(connection: sqlite3.Connection) -> int:
    """Return the latest stamp here that a clock can have given; an origin's last entry in the log has its latest stamp.

    CROSS JOIN fixes the join order: SQLite would otherwise scan the whole log and look up origins.
    """
    last: int | None = connection.execute(
        "SELECT MAX(time) FROM (SELECT l.time FROM origin o CROSS JOIN log l ON l.origin = o.name AND l.seq = o.seq"
        " UNION ALL SELECT time FROM clock) WHERE time <= ?",
        (FOLLOWED_MAX_MS << COUNTER_BITS,),
    ).fetchone()[0]
    return last or 0
