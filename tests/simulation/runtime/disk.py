"""A machine's disk: the part of `node.db` that survives a power cut, and failures of writes.

All that was synced when COMMIT returned survives, and any part of what the writer was about to write then. A full disk
and a broken one refuse writes but allow reads. Each run of a node that follows a loss of power, or of the disk, gets a
directory of its own, so that the old run cannot disturb the new one while it ends.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from replicator.store.db import queries
from replicator.store.db.writer import Writer
from tests.attachments.file_systems.memory import MemoryFiles
from tests.simulation.runtime.scheduler import sleep_shielded

T = TypeVar("T")

DATABASE = "node.db"
SYNCHRONOUS_FULL = 2


class PowerCutError(Exception):
    """The node has lost its power; nothing that it does now counts."""


class DiskFault(Enum):
    """A reason for which nothing can be written: the message and the code of SQLite's error."""

    FULL = ("database or disk is full", sqlite3.SQLITE_FULL)
    BROKEN = ("disk I/O error", sqlite3.SQLITE_IOERR)

    def error(self) -> sqlite3.OperationalError:
        message, code = self.value
        error = sqlite3.OperationalError(message)
        error.sqlite_errorcode = code
        return error


class Disk:
    """A disk, which outlives the runs of its node."""

    def __init__(self, root: Path, sid: str, dice: random.Random) -> None:
        self._fault: DiskFault | None = None
        self.latency_s = 0.001  # mean duration of one sync
        self.dice = dice
        self._root, self._sid = root, sid
        self._directories = 0
        self.directory = self._new_directory()
        self._mount: Mount | None = None
        self._files = MemoryFiles()  # of the attachments
        self._copied_files: dict[Path, MemoryFiles] = {}

    @property
    def fault(self) -> DiskFault | None:
        """The reason for which nothing can be written, if any."""
        return self._fault

    @fault.setter
    def fault(self, fault: DiskFault | None) -> None:
        self._fault = fault
        self._files.is_full, self._files.is_broken = fault is DiskFault.FULL, fault is DiskFault.BROKEN

    @property
    def files(self) -> MemoryFiles:
        """The attachments."""
        return self._files

    @property
    def path(self) -> Path:
        return self.directory / DATABASE

    def mount(self) -> Mount:
        """Return the disk as the next run of the node sees it."""
        self._mount = Mount(self)
        return self._mount

    def power_cut(self) -> None:
        """Go back to the data that is certain to survive, with some of the rest."""
        assert self._mount is not None
        old, mount = self.directory, self._mount
        mount.lose_power()
        self._files = self._files.copy()  # apart from the old run, which is still ending
        self._files.crash(self.dice)
        self.fault = self._fault
        self.directory = self._new_directory()
        wal = old / f"{DATABASE}-wal"
        if (old / DATABASE).exists():
            shutil.copy(old / DATABASE, self.path)
        if wal.exists():
            written = wal.read_bytes()
            kept = self.dice.randint(min(mount.synced_bytes, len(written)), len(written))
            torn = self.dice.choice([b"", self.dice.randbytes(5000)]) if kept < len(written) else b""
            (self.directory / wal.name).write_bytes(written[:kept] + torn)

    def copy(self) -> Path | None:
        """Take a consistent copy of the database, as a backup would; None if there is none yet."""
        if not self.path.exists():
            return None
        self._directories += 1
        target = self._root / f"{self._sid}.copy{self._directories}.db"
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(target)) as copied:
            source.backup(copied)
            is_set_up = copied.execute("PRAGMA user_version").fetchone() != (0,)
        self._copied_files[target] = self._files.copy()
        return target if is_set_up else None

    def restore(self, copy: Path | None) -> dict[str, int]:
        """Replace the contents by those of the copy, or by nothing; the node must be down.

        Return the log's context then.
        """
        self.directory = self._new_directory()
        self._files = MemoryFiles()
        if copy is None:
            return {}
        self._files = self._copied_files[copy].copy()
        shutil.copy(copy, self.path)
        with closing(sqlite3.connect(self.path)) as connection:
            return queries.log_context(connection)

    def restore_of(self, other: Disk) -> None:
        """Replace the contents by those of another disk, which has a database; the node must be down."""
        copy = other.copy()
        assert copy is not None
        self._copied_files[copy] = other._copied_files[copy]
        self.restore(copy)

    def _new_directory(self) -> Path:
        self._directories += 1
        directory = self._root / f"{self._sid}.{self._directories}"
        directory.mkdir()
        return directory


class Mount:
    """The use of its disk by one run of a node; the disk's part of its `Environment`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.files = disk.files
        self._wal = disk.directory / f"{DATABASE}-wal"
        self.synced_bytes = self._wal.stat().st_size if self._wal.exists() else 0
        self.before_writing: Callable[[], None] = lambda: None
        self._dead = False
        self._pending: dict[int, Callable[[], object]] = {}
        self._started = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work as a thread would: not abandoned on cancellation."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._started += 1
        number = self._started
        self._pending[number] = work
        await sleep_shielded(self._disk.dice.expovariate(1 / self._disk.latency_s))
        if self._dead:
            raise PowerCutError
        del self._pending[number]
        if _writer_of(work) is not None:
            self.before_writing()
        return work()

    def open(self, path: Path) -> sqlite3.Connection:
        """See `replicator.runtime.environment.open_database`."""
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256, factory=_Connection
        )
        assert isinstance(connection, _Connection)
        connection.mount = self
        return connection

    def check(self) -> None:
        """Raise sqlite3.OperationalError if a write fails now."""
        fault = self._disk.fault
        if fault is not None and not self._dead and self._disk.dice.random() < 0.9:
            raise fault.error()

    def committed(self, connection: sqlite3.Connection) -> None:
        """Note that COMMIT has returned: the data is safe only if SQLite has synced it."""
        mode: int = connection.execute("PRAGMA synchronous").fetchone()[0]
        if mode >= SYNCHRONOUS_FULL:
            with suppress(FileNotFoundError):
                self.synced_bytes = self._wal.stat().st_size

    def lose_power(self) -> None:
        """Cut the power; the data that the writer was about to write may reach the disk."""
        self._dead = True
        for work in self._pending.values():
            if (writer := _writer_of(work)) is not None:
                with suppress(sqlite3.Error):
                    writer._connection.execute("PRAGMA wal_autocheckpoint = 0")
                    work()


def _writer_of(work: Callable[[], object]) -> Writer | None:
    """Return the writer whose batch the work is, or None for any other work."""
    owner = getattr(work.func, "__self__", None) if isinstance(work, partial) else None
    return owner if isinstance(owner, Writer) else None


class _Connection(sqlite3.Connection):
    mount: Mount
    _writing = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self._writing and (sql == "COMMIT" or sql.startswith("INSERT INTO log")):
            self.mount.check()
        cursor = super().execute(sql, parameters)
        if sql == "BEGIN IMMEDIATE":
            self._writing = True
        elif sql == "ROLLBACK":
            self._writing = False
        elif sql == "COMMIT" and self._writing:
            self._writing = False
            self.mount.committed(self)
        return cursor
