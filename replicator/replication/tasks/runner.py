"""Runs the node's tasks, one at a time, and keeps their status.

The work of a task is a job. An error that a job raises to explain why it failed ends the task and nothing else. So does
a defect: an operator started the task and can ask for less, and the node's other work does not depend on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from replicator.errors import MailError
from replicator.tasks import CheckStatus, InventoryStatus, TaskName, TaskOptions, TaskState, TaskStatus

log = logging.getLogger(__name__)


class TaskError(Exception):
    """A failure of a job. The message says why, and what to do."""


class Job(Protocol):
    """The work of a task."""

    @property
    def status(self) -> TaskStatus:
        """The job's own status, which it updates."""
        ...

    async def run(self) -> None:
        """Do the work. Raises TaskError or MailError if that is impossible."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A job that was started, running or ended."""

    job: Job
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class TaskRunner:
    """The runner of the node's tasks; see `TaskControl`. Belongs to the event loop.

    `job_for` creates the jobs, `clock_ms` reads the wall clock in ms.
    """

    def __init__(self, job_for: Callable[[TaskOptions], Job], clock_ms: Callable[[], int]) -> None:
        self._job_for = job_for
        self._clock_ms = clock_ms
        self._tasks: dict[TaskName, _Task] = {}  # the latest of each kind
        self._asked, self._begun = trio.open_memory_channel[_Task](1)  # one at a time

    def start(self, options: TaskOptions) -> TaskStatus | None:
        """Start a task and return its status; None if a task of any kind is running."""
        if self.running() is not None:
            return None
        task = _Task(self._job_for(options))
        task.job.status.started_ms = self._clock_ms()
        self._tasks[options.name] = task
        self._asked.send_nowait(task)
        return task.job.status.copy()

    def running(self) -> TaskName | None:
        """Return the name of the running task, if any."""
        return next((name for name, task in self._tasks.items() if not task.ended.is_set()), None)

    def status(self, name: TaskName) -> TaskStatus | None:
        """Return the status of the latest task of this kind; None if there was none since the node's start."""
        task = self._tasks.get(name)
        return task.job.status.copy() if task else None

    def state(self, name: TaskName) -> TaskState | None:
        """Return the state of the latest task of this kind; None if there was none since the node's start."""
        task = self._tasks.get(name)
        return task.job.status.state if task else None

    async def wait(self, name: TaskName) -> None:
        """Wait until no task of this kind is running."""
        if (task := self._tasks.get(name)) is not None:
            await task.ended.wait()

    def cancel(self, name: TaskName) -> None:
        """Cancel the running task of this kind; its completed work stays."""
        if (task := self._tasks.get(name)) is not None:
            task.scope.cancel()

    async def run(self) -> None:
        """Run the tasks that are started, until cancelled."""
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
    """Run the job; return why it failed, or None if it completed or was cancelled."""
    try:
        with task.scope:
            await task.job.run()
    except (TaskError, MailError) as error:
        return str(error)
    except Exception as error:  # see the module docstring: any error ends the task and not the node
        log.exception("%s failed because of a defect in this program; the node goes on", task.job.status.task)
        return f"a defect in this program; see the node's log: {type(error).__name__}: {error}"
    return None
