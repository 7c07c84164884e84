"""`replicator mailbox`: shows all that a node knows of a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.client import NodeClient
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json, echo_lines
from replicator.cli.stories import mailbox_lines
from replicator.cli.target import one_node, token_option


@click.group(cls=HelpfulGroup)
def mailbox() -> None:
    """Show all that a node knows of a folder."""


@mailbox.command()
@click.argument("user")
@click.argument("mailbox")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration.")
@click.option("--url", help="The node's address, such as http://127.0.0.1:1080.")
@token_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(user: str, mailbox: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Show USER's MAILBOX: its numbers, its head and master, what waits, and whether other nodes show the same.

    The node asks all others, and gives each three seconds to answer. A folder that was deleted is shown, too, unless
    another one has its name.
    """
    if "" in {user, mailbox}:
        raise click.UsageError("USER and MAILBOX must not be empty")
    with NodeClient(one_node(config_file, url)) as client:
        found = client.mailbox(user, mailbox)
    if as_json:
        echo_json(asdict(found))
    else:
        echo_lines(mailbox_lines.lines(found))
