"""`replicator node`: runs a node in this process until SIGTERM or SIGINT.

Signals are noted from the first moment, before the slow imports.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from replicator.cli.target import config_argument
from replicator.runtime.logs.lines import LEVELS, LogFormat, LogSettings


class LogLevels(click.ParamType[str]):
    """A level, and levels of modules."""

    name = "levels"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the value."""
        try:
            LogSettings.of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - the base class's signature
        """Return the levels that begin so."""
        return [CompletionItem(level) for level in LEVELS if level.startswith(incomplete)]


@click.command()
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@click.option(
    "--log-level",
    metavar="LEVEL[,MODULE=LEVEL]...",
    type=LogLevels(),
    default="info",
    show_default=True,
    help=f"Lowest level to log: {', '.join(LEVELS)}. Modules can have one of their own, such as info,imap=debug.",
)
@click.option(
    "--log-format",
    type=click.Choice(list(map(str, LogFormat))),
    default="auto",
    show_default=True,
    help="Lines of text, JSON, or lines for systemd's journal; auto: those if standard error leads there, else text.",
)
@click.option(
    "--new-cluster",
    is_flag=True,
    help="If the node's database is new, begin a cluster without waiting for peers. Do not use this in service files:"
    " a node that has lost its disk must wait for its peers.",
)
@click.option(
    "--until-stdin-closes", is_flag=True, hidden=True, help="Stop, too, when the process that started the node ends."
)
def node(config_file: Path, log_level: str, log_format: str, *, new_cluster: bool, until_stdin_closes: bool) -> None:
    """Run a node until SIGTERM or SIGINT. SIGHUP makes it read its certificates again.

    Prints the line "ready" on standard output when all listeners accept. Logs to standard error. A node with a new
    database serves no clients until it has met a node that has the cluster's mail, or all of its peers if all are new.
    """
    with _noted_signals() as asked:
        config = config_argument(config_file, serving=True)
        from replicator.cli.processes.node_process import run_process  # noqa: PLC0415  takes long, and signals come meanwhile

        run_process(
            config,
            config_file,
            LogSettings.of(log_level, LogFormat(log_format)),
            asked=asked,
            new_cluster=new_cluster,
            until_stdin_closes=until_stdin_closes,
        )


@contextmanager
def _noted_signals() -> Iterator[Sequence[int]]:
    """Collect incoming signals in a list instead of acting on them."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: asked.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    # The node reads its certificates later in any case.
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
