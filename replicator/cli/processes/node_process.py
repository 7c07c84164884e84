"""A node in this process: logging, signals, and errors as exit codes. Importing this is slow: it imports the node."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import trio

from replicator.cli.output import own_name
from replicator.cli.target import CommandError, ConfigurationError
from replicator.config import Config, load_config
from replicator.errors import ConfigError, DatabaseFailedError, DataError, leaves
from replicator.node import run_node
from replicator.node_parts import umask_of
from replicator.replication.rebuild.rebuilder import RebuildError
from replicator.runtime.logs.lines import LogSettings, log_to_stderr
from replicator.runtime.process.garbage import set_garbage_aside
from replicator.runtime.process.malloc_arenas import share_arenas
from replicator.runtime.process.service_manager import ServiceManager
from replicator.store.db.damage import DatabaseDamagedError

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STDIN_CHUNK_BYTES = 1024


def run_process(
    config: Config,
    file: Path,
    log_settings: LogSettings,
    *,
    asked: Sequence[int],
    new_cluster: bool,
    until_stdin_closes: bool,
) -> None:
    """Run the node until a signal, or until the standard input closes. `new_cluster`: see `run_node`.

    `asked` lists signals that have arrived so far; more may be added until the node handles signals itself. Raises
    ConfigurationError, CommandError.
    """
    log_to_stderr(log_settings)
    faulthandler.enable()  # the watchdog of a service manager sends SIGABRT: the log then has where each thread stood
    os.umask(umask_of(config))
    share_arenas()
    set_garbage_aside()  # the event loop does not run yet: nobody waits for the tenth of a second
    with ending_in_one_line(file, "the node cannot run"):
        run = partial(_run, config, file, asked, new_cluster=new_cluster, until_stdin_closes=until_stdin_closes)
        trio.run(run)


@contextmanager
def ending_in_one_line(file: Path, what: str) -> Iterator[None]:
    """Turn operating errors into a ConfigurationError or CommandError that says `what` failed; defects pass through."""
    errors: list[Exception] = []
    try:
        yield
    except* (OSError, sqlite3.Error, DatabaseFailedError, DataError, ConfigError, RebuildError) as group:
        errors = leaves(group)
    if errors:
        kind = ConfigurationError if isinstance(errors[0], ConfigError) else CommandError
        advice = ""
        if any(isinstance(error, DatabaseDamagedError) for error in errors):
            advice = f"; run `{own_name()} rebuild --from-peers --config {file}`"
        raise kind(f"{file}: {what}: {'; '.join(map(_described, errors))}{advice}")


def _described(error: Exception) -> str:
    """Return the error's text. A file that may not be used is named with the user who wanted to."""
    if isinstance(error, PermissionError) and isinstance(error.filename, str | Path):
        return f"{error.filename}: {error.strerror}; user {os.geteuid()}, who runs this, needs the right to use it"
    return str(error)


async def _run(
    config: Config, file: Path, asked: Sequence[int], *, new_cluster: bool, until_stdin_closes: bool
) -> None:
    manager = ServiceManager.of_environment(os.environ)
    async with trio.open_nursery() as nursery:
        ending = _Ending(nursery.cancel_scope, manager)
        await nursery.start(_end_on_signal, ending)
        if asked:
            ending.begin(signal.Signals(asked[0]).name)
        if until_stdin_closes:
            nursery.start_soon(_end_on_end_of_stdin, ending)
        with trio.open_signal_receiver(signal.SIGHUP) as reloads:
            await run_node(
                config,
                ready=ending.ready,
                new_cluster=new_cluster,
                reloads=reloads,
                stopping=ending.stopping,
                ending=ending,
                manager=manager,
                reread=partial(load_config, file, serving=True),
            )
        nursery.cancel_scope.cancel()


class _Ending:
    """The end of the node: at once while it starts, and in order once it runs. See `NodeEnding`."""

    def __init__(self, scope: trio.CancelScope, manager: ServiceManager) -> None:
        self._scope = scope
        self._manager = manager
        self._is_ready = False
        self.stopping = trio.Event()

    @property
    def is_managed(self) -> bool:
        return self._manager.is_there

    def ready(self) -> None:
        self._is_ready = True
        _say_ready()
        self._manager.ready()

    def begin(self, why: str) -> None:
        log.info("%s: the node is stopping", why)
        self._manager.stopping()
        if self._is_ready:
            self.stopping.set()
        else:
            self._scope.cancel()


async def _end_on_signal(ending: _Ending, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            ending.begin(signal.Signals(number).name)


async def _end_on_end_of_stdin(ending: _Ending) -> None:
    """End when standard input closes: the starting process holds the pipe open, and a kill closes it too."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(STDIN_CHUNK_BYTES):
            pass
    ending.begin("the process that started this node has ended")


def _say_ready() -> None:
    set_garbage_aside()  # what has come since the start: grammars, which take some ms
    # With 65,536 messages in memory a full collection takes 0.1 s, and by default a command that changes all of them
    # brings about several. Messages make no cycles, and what does is mostly young. So full collections come after a
    # hundred of the middle generation instead of ten: garbage of 700,000 objects, some 70 MB, at most.
    gc.set_threshold(700, 10, 100)
    click.echo("ready")
