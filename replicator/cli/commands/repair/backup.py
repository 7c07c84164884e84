"""`replicator backup`: a copy of what a node has, made beside the running node."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protocol.units import MIB
from replicator.cli.output import counted, echo_json, json_option, size
from replicator.cli.target import config_argument
from replicator.cli.task_progress import bar

if TYPE_CHECKING:
    from replicator.backup.making import Backup

LISTED_MAX = 9


@click.command()
@click.option(
    "--to", required=True, metavar="DIR|s3://BUCKET/PREFIX", help="Destination: a new or empty directory, or a bucket."
)
@click.option("--endpoint", help="URL of an S3-compatible server; default: `checkpoint.endpoint`, or Amazon.")
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@json_option
def backup(to: str, endpoint: str | None, config_file: Path, *, as_json: bool) -> None:
    """Copy all mail of a node, on its machine, while it runs or not.

    The backup has the database, the attachments, and the files of users and aliases that the configuration names. Keep
    the configuration, and keys of certificates, by other means. Run it as the node's user. A backup that fails, or is
    ended by an interrupt, SIGTERM or SIGHUP, is removed. Exit code 0 if the backup has everything, 1 if not:
    attachments that the node itself lacks are listed.
    """
    config = config_argument(config_file)
    from replicator.backup.making import back_up, check_apart  # noqa: PLC0415  takes long
    from replicator.backup.places import place_of  # noqa: PLC0415  takes long
    from replicator.cli.commands.repair.backup_errors import in_one_line  # noqa: PLC0415  takes long

    with in_one_line(f"the backup to {to}"), bar("Copying MiB") as show:
        check_apart(config, to)
        place = place_of(to, endpoint or config.checkpoint.endpoint, config.node.data)
        made = back_up(config, place, lambda done, total: show(done // MIB, total // MIB))
    if as_json:
        echo_json(asdict(made))
    else:
        _print(made)
    if made.lacking:
        raise click.exceptions.Exit(1)


def _print(made: Backup) -> None:
    click.echo(
        f"{made.to}: the database and {counted(made.attachments, 'attachment')} of {made.node},"
        f" {counted(made.files, 'file')}, {size(made.size_bytes)}"
    )
    if made.expunged:
        click.echo(f"left out: {counted(made.expunged, 'attachment')} of expunged mail, removed meanwhile")
    if made.lacking:
        more = ", …" if len(made.lacking) > LISTED_MAX else ""
        click.echo(
            f"missing or damaged at the node itself: {counted(len(made.lacking), 'attachment')}"
            f" ({', '.join(made.lacking[:LISTED_MAX])}{more}); run `replicator scrub`, and back up again",
            err=True,
        )
