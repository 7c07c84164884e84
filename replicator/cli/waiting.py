"""Questions to nodes that are asked again until the answer is good, or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from replicator.cli.api.connection import NodeError
from replicator.cli.output import printable
from replicator.cli.target import NoSocketError

ASK_EVERY_S = 0.5
REASONS_SHOWN = 3

T = TypeVar("T")


def ask_until_good(ask: Callable[[], T], faults_of: Callable[[T], Sequence[str]], within_s: float | None) -> T:
    """Ask until the answer has no faults, at most for this time, and return the last answer. None: ask once.

    Whenever the faults change, the first of them go to standard error. Nodes that do not answer, or do not run yet,
    are asked again, too; once the time is over, their error is raised: NodeError, NoSocketError.
    """
    if within_s is None:
        return ask()
    deadline, told = time.monotonic() + within_s, ""
    while True:
        is_last = time.monotonic() >= deadline
        try:
            answer = ask()
        except (NodeError, NoSocketError) as error:
            if is_last:
                raise
            faults: Sequence[str] = [error.message]
        else:
            faults = faults_of(answer)
            if is_last or not faults:
                return answer
        if (now := "; ".join(faults[:REASONS_SHOWN])) != told:
            told = now
            click.echo(f"waiting: {printable(told)}", err=True)
        time.sleep(ASK_EVERY_S)
