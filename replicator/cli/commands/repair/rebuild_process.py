"""A rebuild in this process: its progress, its end and its report. Importing this is slow: it imports the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
import trio
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from replicator.cli.commands.repair.check import findings_table
from replicator.cli.output import console, echo, echo_json, own_name
from replicator.cli.processes.node_process import STOP_SIGNALS, ending_in_one_line
from replicator.cli.target import CommandError
from replicator.config import Config
from replicator.node_parts import umask_of
from replicator.rebuild import rebuild_node
from replicator.replication.rebuild.rebuilder import Progress, Rebuilt
from replicator.runtime.logs.lines import LogSettings, log_to_stderr
from replicator.store.repair.database_swap import replacement_of


def run_rebuild(config: Config, file: Path, *, as_json: bool) -> None:
    """Rebuild until done or until a signal. Raises ConfigurationError, CommandError, or click's Exit with code 1."""
    log_to_stderr(LogSettings("warning"))
    os.umask(umask_of(config))
    try:
        with ending_in_one_line(file, "the node cannot be rebuilt"), _progress() as tell:
            rebuilt = trio.run(_run, config, tell)
    except CommandError as error:
        raise CommandError(f"{error.message}{_state(config)}") from error
    if rebuilt is None:
        again = f"{own_name()} rebuild --from-peers --config {file}"
        raise CommandError(f"{file}: interrupted{_state(config)}; run `{again}` to continue")
    if as_json:
        echo_json(asdict(rebuilt))
    else:
        _print(rebuilt)
    if not rebuilt.is_whole:
        raise click.exceptions.Exit(1)


def _state(config: Config) -> str:
    """Return the consequence of an early end for the node."""
    if replacement_of(config.node.database).exists():
        return "; the node cannot run until a rebuild has finished"
    return "; the node is unchanged"


async def _run(config: Config, tell: Callable[[Progress], None]) -> Rebuilt | None:
    """Run the rebuild. Returns None if a signal ended it."""
    rebuilt: Rebuilt | None = None
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            rebuilt = await rebuild_node(config, tell=tell)
            nursery.cancel_scope.cancel()
    return rebuilt


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on a terminal; elsewhere print a line at the start of each step."""
    said: list[str] = []

    def say(progress: Progress) -> None:
        if said[-1:] != [progress.what]:
            said.append(progress.what)
            click.echo(f"Rebuilding: {progress.what}", err=True)

    if not sys.stderr.isatty():
        yield say
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console(stderr=True)) as bar:
        task = bar.add_task("Rebuilding", total=None)

        def show(progress: Progress) -> None:
            bar.update(task, description=progress.what, completed=progress.done, total=progress.total or None)

        yield show


def _print(rebuilt: Rebuilt) -> None:
    click.echo(
        f"rebuilt from {', '.join(rebuilt.peers)}: {rebuilt.mailboxes} folders, {rebuilt.messages} messages,"
        f" {rebuilt.texts} bodies"
    )
    if rebuilt.set_aside:
        click.echo(
            f"from the damaged database: {rebuilt.salvaged_entries} log entries that no peer had;"
            f" {rebuilt.unreadable_rows} rows of its log could not be read"
        )
        if rebuilt.waiting_entries:
            click.echo(
                f"{rebuilt.waiting_entries} entries wait until their branches are merged, which running nodes do"
            )
        click.echo(f"the damaged database is kept at {rebuilt.set_aside}; remove it once nothing is missed")
    _print_lost(rebuilt)
    if rebuilt.missing_texts:
        echo(console(), findings_table(rebuilt.missing_texts))
        click.echo("no node has these bodies, nor does any readable part of the damaged database: restore a backup,"
                   " or start nodes that are down and run `replicator scrub`", err=True)  # fmt: skip
    for name in rebuilt.differing:
        click.echo(f"a peer shows {name} differently; run `replicator check --repair` there, then `resync`", err=True)


def _print_lost(rebuilt: Rebuilt) -> None:
    """Print the losses from the damaged database's log."""
    if rebuilt.delivered_anew:
        click.echo(f"{rebuilt.delivered_anew} messages that only the damaged database had were delivered again")
    if rebuilt.undelivered:
        click.echo(f"{rebuilt.undelivered} messages of the damaged database could not be delivered: they were refused,"
                   " or their bodies cannot be read", err=True)  # fmt: skip
    if rebuilt.lost_entries is None:
        click.echo("it is unknown what only the damaged database had: mail that only this node had accepted may be"
                   " missing", err=True)  # fmt: skip
    elif gone := rebuilt.lost_entries - rebuilt.untaken_entries:
        click.echo(f"{gone} log entries that no peer has cannot be read", err=True)
    if rebuilt.untaken_entries:
        click.echo(
            f"{rebuilt.untaken_entries} entries can be read in {rebuilt.set_aside} but could not be applied, because"
            f" earlier entries are lost; {rebuilt.untaken_changes} changes in them (flags, folders and expunges)"
            " have not been made again",
            err=True,
        )
