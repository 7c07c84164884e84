"""One store whose log is truncated by rounds of checkpoints, without other nodes."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import trio
from trio.testing import MockClock

from protocol.values import Context
from replicator.config import LogConfig
from replicator.replication.checkpoints.checkpoint_reader import CheckpointSource
from replicator.replication.checkpoints.log_truncation import LogTruncation
from replicator.replication.tasks.check import CheckTask
from replicator.runtime.environment import Environment, open_scratch
from replicator.runtime.objects import ObjectStore
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home, checkpoint_name
from replicator.store.db import queries
from replicator.store.store import Store
from replicator.tasks import CheckOptions, CheckStatus
from tests.replication.cluster import virtual_environment
from tests.store.harness import WORK, creating, expunging, flagging, save

HOME = Home("mail", "dc1")
LIMITS = LogConfig(keep_s=86_400.0, max_size_bytes=1 << 30)


class Cluster:
    """The other nodes. Those in `away` have settled nothing, all others everything."""

    def __init__(self) -> None:
        self.away: list[str] = []

    def lacking(self, _: Context) -> Sequence[str]:
        return self.away


class Running:
    """A store with its log truncation, which runs in the background."""

    def __init__(self, store: Store, objects: ObjectStore, environment: Environment, cluster: Cluster) -> None:
        self.store, self.environment, self.cluster = store, environment, cluster
        self.archive = Archive(objects, HOME)
        self.log_truncation = LogTruncation(store, self.archive, cluster, LIMITS, environment)
        self.bases = CheckpointSource(store, self.archive, environment.run_in_thread)

    async def check(self) -> CheckStatus:
        job = CheckTask(CheckOptions(repair=False), self.store, self.environment, no_body, self.bases)
        await job.run()
        return job.status

    async def assert_sound(self, unproven: int = 0) -> None:
        status = await self.check()
        assert (status.damage, status.unproven) == ({}, unproven)

    async def log_entries(self) -> int:
        return (await self.store.read(queries.log_counts))[0]

    async def objects(self) -> set[str]:
        return {name async for name in self.archive.saved()} | set(await self.archive.manifests())

    async def listed(self) -> set[str]:
        """Return the names of all objects that should exist: a manifest in force, and the checkpoints that it lists."""
        (only,) = await self.store.read(catalog.rounds)
        assert only.in_force
        heads = await self.store.read(lambda reader: list(catalog.heads_in(reader, only.number)))
        newest = await self.archive.newest("dc1")
        assert newest is not None
        assert newest.made_ms == only.made_ms
        assert [head async for head in self.archive.heads(newest)] == heads
        return {newest.name, *(checkpoint_name(HOME, head) for head in heads)}


@asynccontextmanager
async def running(
    tmp_path: Path,
    clock: MockClock,
    objects: ObjectStore | None = None,
    cluster: Cluster | None = None,
    *,
    run: str = "1",
    open_scratch: Callable[[Path], BinaryIO] = open_scratch,
) -> AsyncIterator[Running]:
    environment = replace(virtual_environment(clock, run), open_scratch=open_scratch)
    objects = objects or ObjectStore((tmp_path / "objects").as_uri(), environment)
    async with Store.open(tmp_path / "node.db", f"dc1.{run}", environment) as store, trio.open_nursery() as nursery:
        made = Running(store, objects, environment, cluster or Cluster())
        nursery.start_soon(made.log_truncation.run)
        yield made
        nursery.cancel_scope.cancel()


async def change(store: Store, first: int = 1) -> None:
    if first == 1:
        await store.write(creating("Work", WORK.mailbox_id))
    uids = [await save(store, number) for number in range(first, first + 5)]
    await save(store, first, WORK)
    await store.write(flagging(uids[0], added=["\\Seen"]))
    await store.write(expunging(uids[1]))


async def no_body(_: bytes) -> bool:
    await trio.lowlevel.checkpoint()
    return False
