"""`replicator quota`: shows what a user's mail takes, and may take."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape

from replicator.cli.api.client import NodeClient
from replicator.cli.output import console, echo, echo_json, json_option, size, table
from replicator.cli.target import node_options, one_node


@click.command()
@click.argument("user")
@node_options
@json_option
def quota(user: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Show what the mail of USER takes at a node, in all folders, and the limits that the node knows.

    Limits are in the configuration's section [quota], or in the user's line of the passwd-file.
    """
    if not user:
        raise click.UsageError("USER must not be empty")
    with NodeClient(one_node(config_file, url)) as client:
        found = client.quota(user)
    if as_json:
        echo_json(asdict(found))
        return
    made = table(f"Quota of {escape(found.user)}", "resource", ">used", ">limit", ">share")
    used, limit = found.storage_bytes, found.storage_limit_bytes
    made.add_row("storage", size(used), "none" if limit is None else size(limit), _share(used, limit))
    used, limit = found.messages, found.messages_limit
    made.add_row("messages", str(used), "none" if limit is None else str(limit), _share(used, limit))
    echo(console(), made)


def _share(used: int, limit: int | None) -> str:
    return "-" if limit is None else f"{100 * used // limit} %"
