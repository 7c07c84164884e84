"""`replicator search`: the search texts, which a node keeps so that SEARCH need not read messages."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json, json_option, size
from replicator.cli.target import node_options, one_node


@click.group(cls=HelpfulGroup)
def search() -> None:
    """Look after the texts that a node keeps so that SEARCH need not read messages."""


@search.command()
@node_options
@json_option
def rebuild(config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Delete the kept texts of all messages, and make them anew in the background.

    A node does so by itself when their file is missing, damaged, or of another version. SEARCH finds the same
    meanwhile, but takes longer, since it reads the messages.
    """
    node = one_node(config_file, url)
    with NodeClient(node) as client:
        before = client.rebuild_search_texts()
    if as_json:
        echo_json(asdict(before))
    else:
        kept = f"{size(before.size_bytes)} of {before.bodies} bodies"
        click.echo(
            f"{node.name} deletes its search texts ({kept}), and makes all anew in the background; `status` tells how"
            " far it is"
        )
