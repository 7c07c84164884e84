"""Metrics of the database, its writer, and the disks that the node writes to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics.families import Families
from replicator.store.db.transaction import Commit
from replicator.store.db.writer import MAX_BATCH
from replicator.store.store import Store

COMMIT_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""Upper bounds in seconds: from a disk that keeps a write in battery-backed memory to one that is failing."""

COMMIT_BUCKETS_JOBS = (1, 2, 5, 10, 20, 50, 100, MAX_BATCH)
"""Upper bounds of the jobs that share a transaction."""


class DiskSpace(NamedTuple):
    """Space in a directory's file system."""

    directory: Path
    free_bytes: int  # for users other than root
    all_bytes: int


class Sizes(NamedTuple):
    """Sizes and room of the node's files, by the file system."""

    database_bytes: int
    wal_bytes: int
    disks: tuple[DiskSpace, ...]


def look_at_disk(database: Path, directories: Sequence[Path]) -> Sizes:
    """Return the sizes of the database's files, and the space for these directories. Blocks. Raises OSError."""
    wal = database.with_name(f"{database.name}-wal")
    return Sizes(database.stat().st_size, wal.stat().st_size if wal.exists() else 0, tuple(map(_space_of, directories)))


def _space_of(directory: Path) -> DiskSpace:
    state = os.statvfs(directory)
    return DiskSpace(directory, state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize)


class DatabaseMetrics:
    """Metrics of `node.db` and of disks."""

    def __init__(self, families: Families, coordinator: Coordinator, store: Store) -> None:
        gauge = families.gauge
        self._store = store
        self._shortage = coordinator.disk_shortage
        self._commits = families.counter("commits_total", "Database transactions, each with one fsync.")
        self._commit_seconds = families.histogram(
            "commit_seconds",
            "Time of a transaction's COMMIT: its fsync and, now and then, a checkpoint of the write-ahead log.",
            COMMIT_BUCKETS_S,
        )
        self._commit_jobs = families.histogram(
            "commit_jobs", "Requests that shared a transaction, and so its fsync.", COMMIT_BUCKETS_JOBS
        )
        self._queue = gauge(
            "writer_queue_jobs", "Requests that wait for the database's writer, besides those that it is writing."
        )
        self._database_bytes = gauge("database_bytes", "Size of the database file, without its write-ahead log.")
        self._wal_bytes = gauge(
            "database_wal_bytes", "Size of the file of the write-ahead log, which keeps the size that it once reached."
        )
        self._free = gauge(
            "disk_free_bytes", "Space for other users than root in the file system of this directory.", "directory"
        )
        self._all = gauge("disk_size_bytes", "Size of the file system of this directory.", "directory")
        self._without_room = gauge(
            "entries_without_room",
            "Log entries of other nodes that wait because the disk of this directory has no room for them.",
            "directory",
        )
        self.directories = tuple(dict.fromkeys((self._shortage.data, self._shortage.attachments)))

    def committed(self, commit: Commit) -> None:
        """Count a transaction that is on disk."""
        self._commits.inc()
        self._commit_seconds.observe(commit.took_s)
        self._commit_jobs.observe(commit.jobs)

    def refresh(self) -> None:
        """Show the present state of the writer, and what does not fit on the disk."""
        self._queue.set(self._store.queued)
        self._without_room.labels(str(self._shortage.data)).set(len(self._shortage))

    def refresh_sizes(self, sizes: Sizes) -> None:
        """Show what the file system said."""
        self._database_bytes.set(sizes.database_bytes)
        self._wal_bytes.set(sizes.wal_bytes)
        for disk in sizes.disks:
            self._free.labels(str(disk.directory)).set(disk.free_bytes)
            self._all.labels(str(disk.directory)).set(disk.all_bytes)
