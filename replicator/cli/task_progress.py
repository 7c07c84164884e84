"""Running a task at a node: a bar while it goes on; an interrupt ends the task, too."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from types import FrameType
from typing import TypeAlias, TypeVar

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from replicator.cli.client import NodeClient, RefusedError, TaskKind
from replicator.cli.output import console
from replicator.cli.target import NodeUrl
from replicator.tasks import TaskOptions, TaskStatus

S = TypeVar("S", bound=TaskStatus)

Show: TypeAlias = Callable[[int, int], None]
"""How much is done, of how much."""


def followed(node: NodeUrl, task: TaskKind[S], options: TaskOptions, shown: str) -> S:
    """Begin a task and wait; what came of it. `shown` is what the bar is named. Raises as `carried_out`."""
    with bar(shown) as show:
        return carried_out(node, task, options, show)


def carried_out(node: NodeUrl, task: TaskKind[S], options: TaskOptions, show: Show) -> S:
    """Begin a task and wait; what came of it.

    Raises as `NodeClient`, and click.UsageError for options with which no node can begin.
    """
    status: S | None = None
    with NodeClient(node) as client:
        try:
            with _interrupted_later():  # who does not hear whether it has begun does not know what to end
                status = client.start(task, asdict(options))
            while status.is_running:
                status = client.follow(task)
                show(status.done, status.total)
        except RefusedError as error:
            if status is None and error.status == HTTPStatus.BAD_REQUEST:
                raise click.UsageError(error.detail) from error
            raise
        except KeyboardInterrupt:
            if status is None:
                raise
            with NodeClient(node) as another:  # the first one may have an answer on its way
                return another.cancel(task)
        return status


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """An interrupt within the block comes at its end; a second one at once."""
    came = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def bar(shown: str) -> Iterator[Show]:
    """A bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(shown, total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show


def echo_end(status: TaskStatus) -> None:
    """Say that a task did not come to its end, and why."""
    click.echo(f"Error: {status.task} {status.state}" + (f": {status.error}" if status.error else ""), err=True)
