"""`replicator top`: shows again and again what a node does."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.node_pace import Watch
from replicator.cli.output import begin_screen, console, echo, json_option
from replicator.cli.pace_tables import pace_tables
from replicator.cli.target import NodeUrl, node_options, one_node

ANSWER_S = 10.0


@click.command()
@click.option(
    "--seconds",
    "every_s",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Time between two looks.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many looks; otherwise at Ctrl-C.")
@node_options
@json_option
def top(config_file: Path | None, url: str | None, *, every_s: float, count: int | None, as_json: bool) -> None:
    """Show what a node does now, again and again: sessions, commands, mail, peers, processes, users.

    With --json each look is a line. Exit code 1 if the last look has failed.
    """
    node = one_node(config_file, url)
    looks, failed = 0, False
    with suppress(KeyboardInterrupt), NodeClient(node, timeout_s=ANSWER_S) as client:
        watch = Watch(client)
        watch.look()  # raises if the node cannot be asked at all
        while count is None or looks < count:
            time.sleep(every_s)
            looks, failed = looks + 1, not _show(node, watch, as_json=as_json)
    if failed:
        raise click.exceptions.Exit(1)


def _show(node: NodeUrl, watch: Watch, *, as_json: bool) -> bool:
    """Look, and show what there is; return False if the node cannot be asked."""
    try:
        view = watch.look()
    except (UnreachableError, RefusedError) as error:
        if not as_json:
            begin_screen()
        click.echo(f"Error: {error.message}", err=True)
        return False
    if view is not None and as_json:
        click.echo(json.dumps(asdict(view)))
    elif view is not None:
        begin_screen()
        echo(console(), *pace_tables(view))
    else:
        click.echo(f"{node.name} has been started anew", err=True)
    return True
