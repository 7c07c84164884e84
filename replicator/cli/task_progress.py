"""Running a task at a node, with a progress bar; an interrupt also cancels the task."""

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

from replicator.cli.api.client import NodeClient, TaskKind
from replicator.cli.api.connection import RefusedError
from replicator.cli.output import console
from replicator.cli.target import NodeUrl
from replicator.tasks import TaskOptions, TaskStatus

S = TypeVar("S", bound=TaskStatus)

Show: TypeAlias = Callable[[int, int], None]
"""Called with the work done and the total."""


def followed(node: NodeUrl, task: TaskKind[S], options: TaskOptions, shown: str) -> S:
    """Run a task to its end and return its result. `shown` is the name of the bar. Raises as `carried_out`."""
    with bar(shown) as show:
        return carried_out(node, task, options, show)


def carried_out(node: NodeUrl, task: TaskKind[S], options: TaskOptions, show: Show) -> S:
    """Run a task to its end and return its result.

    Raises as `NodeClient`, and click.UsageError for options that every node refuses.
    """
    status: S | None = None
    with NodeClient(node) as client:
        try:
            with _interrupted_later():  # without this answer it is unknown whether there is a task to cancel
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
    """Delay an interrupt within the block to its end; a second one takes effect at once."""
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
    """Show a progress bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(shown, total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show


def echo_end(status: TaskStatus) -> None:
    """Report that a task ended early, and why."""
    click.echo(f"Error: {status.task} {status.state}" + (f": {status.error}" if status.error else ""), err=True)
