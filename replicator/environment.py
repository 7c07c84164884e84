"""The world as a node sees it: time, randomness, threads and the disk.

They come in through constructors so that a whole cluster can run in one process, in virtual time, from one seed.
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
from typing import BinaryIO, Protocol, TypeVar

import trio

T = TypeVar("T")

GUID_BYTES = 16
ABANDONED_MAX = 32  # threads: twice what a new node reads at once, and a few


class ThreadRunner(Protocol):
    """Runs blocking work off the event loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return what `work` returns or raise what it raises."""
        ...


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run in a thread of trio's cache, however many others wait: each caller bounds its own use.

    Cancelled, it ends when the thread does.
    """
    return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))


class Abandoning:
    """Runs in threads that are left to themselves when the caller is cancelled: for what may hang."""

    def __init__(self) -> None:
        self._room = trio.CapacityLimiter(ABANDONED_MAX)

    async def __call__(self, work: Callable[[], T]) -> T:
        """See `ThreadRunner`. Waits while too many threads hang."""
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._room)


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, by this machine's clock."""
    return time.time_ns() // 1_000_000


def suspended_s() -> float:
    """For how long this machine has slept since it was started: trio's clock does not count that. 0 if it cannot tell.

    The order of the readings matters: stopped between them, a process finds the result too small, and later right.
    """
    if sys.platform == "linux":
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return since_boot_s - time.clock_gettime(time.CLOCK_MONOTONIC)
    return 0.0


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is created if it is not there; transactions are its user's."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)


def open_scratch(directory: Path) -> BinaryIO:
    """A file without a name in the directory, gone when it is closed. Raises OSError."""
    return TemporaryFile(dir=directory)


@dataclass(frozen=True, slots=True)
class Environment:
    """`random` names things (GUIDs, mailbox ids, origins); `clock_ms` is the wall clock.

    Waits use trio's clock, which stands still while the machine sleeps: `suspended_s` is for how long it has.
    What runs `until_cancelled` goes on in its thread after that, and must do no harm there.
    """

    clock_ms: Callable[[], int] = wall_clock_ms
    suspended_s: Callable[[], float] = suspended_s
    random: random.Random = field(default_factory=random.SystemRandom)
    run_in_thread: ThreadRunner = run_in_thread
    run_until_cancelled: ThreadRunner = field(default_factory=Abandoning)
    open_database: Callable[[Path], sqlite3.Connection] = open_database
    open_scratch: Callable[[Path], BinaryIO] = open_scratch

    def new_guid(self) -> bytes:
        """128 random bits."""
        return self.random.randbytes(GUID_BYTES)

    def new_origin(self, sid: str) -> str:
        """A name for a run of the node that was never used before, also if its data came back from an old backup."""
        return f"{sid}.{self.clock_ms():x}{self.random.randrange(1 << 16):04x}"
