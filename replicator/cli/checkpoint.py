"""`replicator checkpoint`: have a node write down what it shows, now."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from replicator.cli.client import NodeClient
from replicator.cli.output import echo_json, size
from replicator.cli.target import one_node
from replicator.status import CheckpointStatus


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration.")
@click.option("--url", help="The node's address, http://127.0.0.1:1080.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def checkpoint(config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Write checkpoints of all mailboxes and folder trees that have changed to `checkpoint.url`.

    A node does so by itself every hour, and when its log has grown by a quarter of `log.max_size`. Once all nodes have
    what the checkpoints show, the entries of the log before them are deleted.
    """
    with NodeClient(one_node(config_file, url)) as client:
        status = client.checkpoint()
    if as_json:
        echo_json(asdict(status))
    else:
        _print(status)


def _print(status: CheckpointStatus) -> None:
    if status.made_ms is None:
        click.echo("nothing to write yet")
        return
    made = datetime.fromtimestamp(status.made_ms / 1000, UTC)
    click.echo(f"{status.saved} checkpoints written, {size(status.saved_bytes)}")
    click.echo(f"the manifest of {made:%Y-%m-%d %H:%M:%S} UTC lists {status.mailboxes} mailboxes and trees")
    if status.in_force:
        click.echo("it is in force: entries of the log before it are deleted")
    else:
        click.echo(f"the log before it is kept until {', '.join(status.waits_for) or 'this node'} can do without")
