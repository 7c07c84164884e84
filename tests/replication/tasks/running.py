"""Run tasks at nodes of a cluster, and wait for their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from replicator.replication.tasks.registry import tasks_of
from replicator.replication.tasks.runner import TaskRunner
from replicator.replication.tasks.scrub import ScrubTask
from replicator.tasks import (
    CheckOptions,
    CheckStatus,
    ResyncOptions,
    ResyncStatus,
    ScrubOptions,
    TaskName,
    TaskOptions,
    TaskStatus,
)
from tests.replication.cluster import Node

S = TypeVar("S", bound=TaskStatus)


@asynccontextmanager
async def tasks_at(node: Node) -> AsyncIterator[TaskRunner]:
    async with trio.open_nursery() as nursery:
        tasks = tasks_of(node.store, node.coordinator, node.environment)
        nursery.start_soon(tasks.run)
        yield tasks
        nursery.cancel_scope.cancel()


async def run_to_end(tasks: TaskRunner, options: TaskOptions, kind: type[S]) -> S:
    """Start a task and wait for its end; return its status, which must be of this kind."""
    assert tasks.start(options)
    await tasks.wait(options.name)
    status = tasks.status(options.name)
    assert isinstance(status, kind)
    return status


async def run_task(node: Node, options: TaskOptions, kind: type[S]) -> S:
    async with tasks_at(node) as tasks:
        return await run_to_end(tasks, options, kind)


async def check_at(
    node: Node, name: TaskName = "check", *, repair: bool = False, rate: int | None = None
) -> CheckStatus:
    options: TaskOptions = ScrubOptions(rate) if name == "scrub" else CheckOptions(repair, rate)
    status = await run_task(node, options, CheckStatus)
    assert (status.state, status.error) == ("done", None)
    assert Counter(finding.kind for finding in status.findings) == status.damage
    assert sum(finding.done is not None for finding in status.findings) == status.repaired
    return status


async def resync_at(node: Node, options: ResyncOptions) -> ResyncStatus:
    status = await run_task(node, options, ResyncStatus)
    assert (status.state, status.error) == ("done", None)
    assert len(status.differences) == status.mended + status.unmended
    assert status.done == status.total
    return status


async def scrub(node: Node) -> CheckStatus:
    job = ScrubTask(ScrubOptions(), node.store, node.coordinator.bodies)
    await job.run()
    return job.status
