"""`replicator inventory`: writes what a running node shows as Parquet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape

from replicator.cli.api.client import INVENTORY
from replicator.cli.output import console, echo, echo_json, size, table
from replicator.cli.target import node_options, one_node
from replicator.cli.task_progress import echo_end, followed
from replicator.tasks import InventoryOptions, InventoryStatus

S3 = "s3://"


@click.command()
@click.option(
    "--to", required=True, metavar="PATH|s3://BUCKET/PREFIX", help="Destination: a new or empty directory, or a bucket."
)
@click.option("--endpoint", help="URL of an S3-compatible server; default: `checkpoint.endpoint`, or Amazon.")
@click.option("--overwrite", is_flag=True, help="Replace an incomplete inventory at the destination.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def inventory(
    to: str,
    endpoint: str | None,
    config_file: Path | None,
    url: str | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write what a node shows at one moment as Parquet files, for Spark and similar tools, while it runs.

    The node writes the files in a separate process, on its machine and as its user. With --config, which names a node
    on this machine, a relative PATH starts at the current directory; with --url it must be absolute. An interrupt ends
    the inventory and removes what was written. Exit code 0 if the inventory has all rows, 1 if some of the node's rows
    are unreadable, or if it was not written.
    """
    node = one_node(config_file, url)
    options = InventoryOptions(_place(to, is_here=config_file is not None), endpoint, overwrite)
    status = followed(node, INVENTORY, options, "Writing")
    if as_json:
        echo_json(asdict(status))
    else:
        _print(status)
    if status.state != "done" or status.damage:
        raise click.exceptions.Exit(1)


def _place(to: str, *, is_here: bool) -> str:
    """Return the place as the node needs it. Raises click.BadParameter."""
    if to.startswith(S3) or Path(to).is_absolute():
        return to
    if "://" in to:
        raise click.BadParameter(f"{to!r} is neither a directory nor s3://BUCKET/PREFIX", param_hint="--to")
    if not to or not is_here:
        raise click.BadParameter(
            f"{to!r} is not an absolute path; the node at --url may be on another machine", param_hint="--to"
        )
    return str(Path.cwd() / to)


def _print(status: InventoryStatus) -> None:
    if status.unreadable:
        made = table("Not in the inventory", "table", "row…", "why…")
        for one in status.unreadable:
            made.add_row(*map(escape, (one.table, one.key, one.what)))
        echo(console(), made)
    if status.left_out:
        click.echo(f"{status.left_out} more are not listed")
    if status.state != "done":
        echo_end(status)
        return
    rows = ", ".join(f"{count} {name}" for name, count in status.rows.items())
    click.echo(f"{status.to}: {rows or 'no rows'}; {status.files} files, {size(status.size_bytes)}")
    if status.damage:
        click.echo(f"{sum(status.damage.values())} rows cannot be read; run `replicator check --repair`", err=True)
