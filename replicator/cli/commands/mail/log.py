"""`replicator log`: shows what happened to a folder, or to a user's folders, from a node's log."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json, echo_lines, json_option
from replicator.cli.stories import history_lines
from replicator.cli.target import node_options, one_node
from replicator.cli.times import parse_since
from replicator.stories import LAST_DEFAULT, LAST_MAX


@click.group(cls=HelpfulGroup)
def log() -> None:
    """Show what happened to a folder, from a node's log."""


@log.command()
@click.argument("user")
@click.argument("mailbox", required=False)
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    help=f"Number of entries, {LAST_MAX} at most; default: {LAST_DEFAULT}, or with --since all.",
)
@click.option("--since", metavar="WHEN", help="Only entries since then: 3d, 2026-11-20, 2026-11-20T10:00.")
@node_options
@json_option
def show(
    user: str,
    mailbox: str | None,
    last: int | None,
    since: str | None,
    *,
    config_file: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show the history of USER's MAILBOX, or of all of USER's folders: their names, subscriptions and annotations.

    One line an entry, the newest first: when and at which node it was made, what it did, and its name. Where nodes have
    made changes apart from each other, the history forks, and a merge joins it again. An entry that waits is not shown
    to clients yet: an earlier one is missing, or its branch is still to be joined.
    """
    if not user or mailbox == "":
        raise click.UsageError("USER and MAILBOX must not be empty")
    since_ms = 0 if since is None else parse_since(since, time.time())
    most = last or (LAST_DEFAULT if since is None else LAST_MAX)
    with NodeClient(one_node(config_file, url)) as client:
        found = client.history(user, mailbox, most, since_ms)
    if as_json:
        echo_json(asdict(found))
    else:
        echo_lines(history_lines.lines(found))
