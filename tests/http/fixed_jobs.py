"""Tasks whose jobs report what the test gives them, and end when the test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from replicator.replication.tasks.runner import TaskError, TaskRunner
from replicator.tasks import (
    ApplyOptions,
    ApplyStatus,
    CheckOptions,
    CheckStatus,
    Finding,
    InventoryOptions,
    InventoryStatus,
    ResyncOptions,
    ResyncStatus,
    TaskOptions,
    UndeleteOptions,
    UndeleteStatus,
)

BRITTLE_RATE = 7  # a job with this rate raises an error when it is cancelled
FOUND = Finding("by_uid", "alice", "INBOX", 3, "ab" * 16, "is missing", None)


@dataclass
class FixedJob:
    options: TaskOptions
    status: CheckStatus | ResyncStatus | UndeleteStatus | InventoryStatus | ApplyStatus
    ended: trio.Event = field(default_factory=trio.Event)
    error: str | None = None
    defect: Exception | None = None

    async def run(self) -> None:
        try:
            await self.ended.wait()
        except trio.Cancelled:
            if self.status.rate == BRITTLE_RATE:
                raise ValueError("too late") from None
            raise
        if self.error:
            raise TaskError(self.error)
        if self.defect:
            raise self.defect


@dataclass
class FixedJobs:
    started: list[FixedJob] = field(default_factory=list)

    def job_for(self, options: TaskOptions) -> FixedJob:
        self.started.append(FixedJob(options, _status(options)))
        return self.started[-1]

    @property
    def last(self) -> FixedJob:
        return self.started[-1]

    def end(self, *findings: Finding, error: str | None = None, defect: Exception | None = None) -> None:
        status = self.last.status
        if isinstance(status, CheckStatus):
            status.findings += findings
            status.damage = {"by_uid": len(findings)} if findings else {}
        self.last.error, self.last.defect = error, defect
        self.last.ended.set()

    def tasks(self) -> TaskRunner:
        return TaskRunner(self.job_for, lambda: 1_000)


def _status(options: TaskOptions) -> CheckStatus | ResyncStatus | UndeleteStatus | InventoryStatus | ApplyStatus:
    if isinstance(options, InventoryOptions):
        return InventoryStatus(task="inventory", rate=None, to=options.to)
    if isinstance(options, ApplyOptions):
        return ApplyStatus(task="apply", rate=options.rate, dry_run=options.dry_run)
    if isinstance(options, UndeleteOptions):
        return UndeleteStatus(
            task="undelete", rate=None, user=options.user, mailbox=options.mailbox, since_ms=options.since_ms,
            dry_run=options.dry_run,
        )  # fmt: skip
    if isinstance(options, ResyncOptions):
        return ResyncStatus(
            task="resync", rate=options.rate, user=options.user, mailbox=options.mailbox, dry_run=options.dry_run
        )
    repair = not isinstance(options, CheckOptions) or options.repair
    return CheckStatus(task=options.name, rate=options.rate, repair=repair)


@asynccontextmanager
async def running(tasks: TaskRunner) -> AsyncIterator[TaskRunner]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        yield tasks
        nursery.cancel_scope.cancel()
