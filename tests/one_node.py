"""A real node without doors or peers, for tests of the doors: its database is on disk, its work is done inline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from replicator.config import default_config
from replicator.environment import Environment
from replicator.replication.coordinator import Coordinator
from replicator.replication.service import ClusterMail
from replicator.store.store import Store

T = TypeVar("T")


async def run_inline(work: Callable[[], T]) -> T:
    """Without a thread, so that virtual time does not pass it by."""
    await trio.lowlevel.checkpoint()
    return work()


async def no_peers(*_: object) -> trio.abc.Stream:
    raise OSError("there are no peers")


@asynccontextmanager
async def one_node(directory: Path) -> AsyncIterator[ClusterMail]:
    """The mail store of a cluster of one node."""
    environment = Environment(run_in_thread=run_inline)
    config = default_config("dc1", directory)
    origin = environment.new_origin("dc1")
    async with Store.open(directory / "node.db", origin, environment) as store, trio.open_nursery() as nursery:
        coordinator = Coordinator(config, store, environment, no_peers)
        nursery.start_soon(coordinator.run)
        yield ClusterMail(store, coordinator, environment)
        nursery.cancel_scope.cancel()
