"""The node's tasks, of which one runs at a time: begun when they are asked for, looked after, ended.

What a task does is a job. It may raise what says why it could not be done; that ends the task and nothing else. So
does a defect: a task is asked for by a person, who can ask for less, and the node's other work does not depend on it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from replicator.errors import MailError
from replicator.tasks import CheckStatus, InventoryStatus, TaskName, TaskOptions, TaskStatus

log = logging.getLogger(__name__)


class TaskError(Exception):
    """A job cannot be done. The text says why, and what to do."""


class Job(Protocol):
    """What a task does."""

    @property
    def status(self) -> TaskStatus:
        """How it is with it; the job's own, which it changes."""
        ...

    async def run(self) -> None:
        """Do it. Raises TaskError, MailError or sqlite3.Error if it cannot be done."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A job that was asked for, present or past."""

    job: Job
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class TaskRunner:
    """Belongs to the event loop. See `TaskControl`. `job_for` makes the jobs, `clock_ms` tells the time."""

    def __init__(self, job_for: Callable[[TaskOptions], Job], clock_ms: Callable[[], int]) -> None:
        self._job_for = job_for
        self._clock_ms = clock_ms
        self._tasks: dict[TaskName, _Task] = {}  # the last of each kind
        self._asked, self._begun = trio.open_memory_channel[_Task](1)  # one at a time

    def start(self, options: TaskOptions) -> TaskStatus | None:
        """Begin one; None if one of any kind runs already."""
        if self.running() is not None:
            return None
        task = _Task(self._job_for(options))
        task.job.status.started_ms = self._clock_ms()
        self._tasks[options.name] = task
        self._asked.send_nowait(task)
        return task.job.status.copy()

    def running(self) -> TaskName | None:
        """The one that runs."""
        return next((name for name, task in self._tasks.items() if not task.ended.is_set()), None)

    def status(self, name: TaskName) -> TaskStatus | None:
        """The last one, or the one that runs; None if there was none since the node's start."""
        task = self._tasks.get(name)
        return task.job.status.copy() if task else None

    async def wait(self, name: TaskName) -> None:
        """Return when none of this kind runs."""
        if (task := self._tasks.get(name)) is not None:
            await task.ended.wait()

    def cancel(self, name: TaskName) -> None:
        """End it soon; what it has done stays done."""
        if (task := self._tasks.get(name)) is not None:
            task.scope.cancel()

    async def run(self) -> None:
        """Do what is asked for, until cancelled."""
        async for task in self._begun:
            status = task.job.status
            status.error = await _why_not(task)
            status.state = "failed" if status.error else "cancelled" if task.scope.cancelled_caught else "done"
            status.ended_ms = self._clock_ms()
            task.ended.set()
            has_found_damage = isinstance(status, (CheckStatus, InventoryStatus)) and bool(status.damage)
            level = logging.WARNING if has_found_damage or status.error else logging.INFO
            why = f": {status.error}" if status.error else ""
            log.log(level, "%s: %s, %s%s", status.task, status.state, status.summary(), why)


async def _why_not(task: _Task) -> str | None:
    """Why it could not be done, or None if it was, or was cancelled."""
    try:
        with task.scope:
            await task.job.run()
    except (TaskError, MailError, sqlite3.Error) as error:
        return str(error)
    except Exception as error:  # see above: whatever it is, it ends the task and not the node
        log.exception("%s failed by a defect of the program; the node goes on", task.job.status.task)
        return f"a defect of the program, of which the node's log has more: {type(error).__name__}: {error}"
    return None
