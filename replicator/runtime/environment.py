"""A node's access to the outside world: time, randomness, threads and the disk.

All of it is passed in through constructors, so that a whole cluster can run in one process, in virtual time, from one
seed.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Protocol, TypeVar, cast

import trio

T = TypeVar("T")

GUID_BYTES, TIME_BYTES = 16, 4
ABANDONED_MAX = 32  # threads: twice the number that a new node reads with at once, and a few


class ThreadRunner(Protocol):
    """Runs blocking work off the event loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return what `work` returns or raise what it raises."""
        ...


class _NoLimit:
    """The limiter of threads that lets everybody in at once; a `trio.CapacityLimiter` costs a turn of the loop."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Let the borrower in."""

    def release_on_behalf_of(self, borrower: object) -> None:
        """Let the borrower go."""


_NO_LIMIT = cast("trio.CapacityLimiter", _NoLimit())  # trio takes any object that has these methods


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread of trio's cache, with no common limit: each caller bounds its own use.

    If cancelled, the call returns only when the thread has finished.
    """
    return await trio.to_thread.run_sync(work, limiter=_NO_LIMIT)


class Abandoning:
    """Runs work that may hang in threads that are abandoned when the caller is cancelled."""

    def __init__(self) -> None:
        self._room = trio.CapacityLimiter(ABANDONED_MAX)

    async def __call__(self, work: Callable[[], T]) -> T:
        """Run `work` as `ThreadRunner` does. Waits while `ABANDONED_MAX` threads are busy or hanging."""
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._room)


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch, by this machine's clock."""
    return time.time_ns() // 1_000_000


def suspended_s() -> float:
    """Return the seconds that this machine has been suspended since boot, or 0 if the platform cannot tell.

    Trio's clock does not count that time. The two clocks are read in this order on purpose: a process that is stopped
    between the readings gets a result that is too small, and the right one next time.
    """
    if sys.platform == "linux":
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return since_boot_s - time.clock_gettime(time.CLOCK_MONOTONIC)
    return 0.0


def open_database(path: Path) -> sqlite3.Connection:
    """Open a connection to the file, creating it if it is missing. The caller manages transactions."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)


def open_scratch(directory: Path) -> BinaryIO:
    """Open a nameless file in the directory that vanishes when it is closed. Raises OSError."""
    return TemporaryFile(dir=directory)


@dataclass(frozen=True, slots=True)
class Environment:
    """Clocks, randomness, thread runners and file access of one node.

    `random` generates GUIDs, mailbox ids and origins; `clock_ms` is the wall clock. `stopwatch_s` is for durations, in
    any thread. Waits use trio's clock, which stands still while the machine sleeps; `suspended_s` tells for how long it
    has slept. Work given to
    `run_until_cancelled` goes on in its thread after the caller is cancelled, and must do no harm there.
    """

    clock_ms: Callable[[], int] = wall_clock_ms
    stopwatch_s: Callable[[], float] = time.monotonic
    suspended_s: Callable[[], float] = suspended_s
    random: random.Random = field(default_factory=random.SystemRandom)
    run_in_thread: ThreadRunner = run_in_thread
    run_until_cancelled: ThreadRunner = field(default_factory=Abandoning)
    open_database: Callable[[Path], sqlite3.Connection] = open_database
    open_scratch: Callable[[Path], BinaryIO] = open_scratch

    def new_guid(self) -> bytes:
        """Return a new name of a message or mailbox: the time in ms, and 96 random bits.

        Names that are given at one time are neighbours in an index, and mostly share a page. It does not matter that
        the time begins anew after 50 days.
        """
        time = self.clock_ms() % (1 << 8 * TIME_BYTES)
        return time.to_bytes(TIME_BYTES) + self.random.randbytes(GUID_BYTES - TIME_BYTES)

    def new_origin(self, sid: str) -> str:
        """Return a new name for this run of the node, unused even if its data came from an old backup."""
        return f"{sid}.{self.clock_ms():x}{self.random.randrange(1 << 16):04x}"
