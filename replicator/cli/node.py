"""`replicator node`: this process is a node until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import click
import trio

from replicator.cli.target import CommandError, ConfigurationError, config_argument
from replicator.config import Config
from replicator.errors import ConfigError
from replicator.node import run_node

LOG_LEVELS = ("debug", "info", "warning", "error")
STDIN_CHUNK_BYTES = 1024
CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n",
    0x0D: "\\r",
}


class OneLineFormatter(logging.Formatter):
    """An event is a line, tracebacks included: what a peer sends cannot forge another event."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """The event, in UTC."""
        return super().format(record).translate(CONTROL_CHARACTERS)


@click.command()
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What to log.")
@click.option("--until-stdin-closes", is_flag=True, hidden=True, help="End, too, when the starting process is gone.")
def node(config_file: Path, log_level: str, *, until_stdin_closes: bool) -> None:
    """Run a node until SIGTERM or SIGINT.

    Prints the line "ready" on standard output when all listeners accept. Logs to standard error.
    """
    config = config_argument(config_file)
    _log_to_stderr(log_level)
    errors: list[Exception] = []
    try:
        trio.run(_run, config, until_stdin_closes)
    except* (OSError, ConfigError) as group:
        errors = _leaves(group)
    if errors:
        kind = ConfigurationError if isinstance(errors[0], ConfigError) else CommandError
        raise kind(f"{config_file}: the node cannot run: {'; '.join(map(str, errors))}")


async def _run(config: Config, until_stdin_closes: bool) -> None:  # noqa: FBT001  trio.run passes by position
    async with trio.open_nursery() as nursery:
        await nursery.start(_cancel_on_signal, nursery.cancel_scope)
        if until_stdin_closes:
            nursery.start_soon(_cancel_on_end_of_stdin, nursery.cancel_scope)
        await run_node(config, ready=_say_ready)
        nursery.cancel_scope.cancel()


async def _cancel_on_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            logging.getLogger(__name__).info("%s: the node ends", signal.Signals(number).name)
            scope.cancel()


async def _cancel_on_end_of_stdin(scope: trio.CancelScope) -> None:
    """Standard input is a pipe that the starting process holds open: it closes even if that one is killed."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(STDIN_CHUNK_BYTES):
            pass
    logging.getLogger(__name__).info("the starting process is gone: the node ends")
    scope.cancel()


def _say_ready() -> None:
    click.echo("ready")


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(asctime)sZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    leaves: list[Exception] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, ExceptionGroup) else [error])
    return leaves
