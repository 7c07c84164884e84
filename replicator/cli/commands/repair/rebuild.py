"""`replicator rebuild`: a new database for a node whose own is damaged."""

from __future__ import annotations

from pathlib import Path

import click

from replicator.cli.target import config_argument


@click.command()
@click.option("--from-peers", is_flag=True, help="Required: confirms that mail is taken from other nodes.")
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def rebuild(config_file: Path, *, from_peers: bool, as_json: bool) -> None:
    """Build a new database for a stopped node from its peers.

    Data that only the damaged database has is taken from it, as far as it can be read; then that database is set aside
    as node.db.DATE.damaged. An interrupt leaves it in place, and an error message says whether the node can run; run
    the command again to continue. Exit code 0 if the new database has everything, 1 otherwise.
    """
    if not from_peers:
        raise click.UsageError(
            "confirm by --from-peers: data that only this node has and that is unreadable will be lost"
        )
    config = config_argument(config_file, serving=True)
    from replicator.cli.commands.repair.rebuild_process import run_rebuild  # noqa: PLC0415  takes long

    run_rebuild(config, config_file, as_json=as_json)
