"""`replicator restore`: a backup put in the place of the data of a stopped node."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protocol.units import MIB
from replicator.cli.output import counted, echo_json, json_option, size
from replicator.cli.target import config_argument
from replicator.cli.task_progress import bar

if TYPE_CHECKING:
    from replicator.backup.restoring import Restored


@click.command()
@click.option(
    "--from", "source", required=True, metavar="DIR|s3://BUCKET/PREFIX", help="The backup: a directory, or a bucket."
)
@click.option("--endpoint", help="URL of an S3-compatible server; default: `checkpoint.endpoint`, or Amazon.")
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@click.option("--replace", is_flag=True, help="Set aside what the node has now.")
@click.option("--check", "only_check", is_flag=True, help="Only read the backup and check it; the node may run.")
@json_option
def restore(
    source: str, endpoint: str | None, config_file: Path, *, replace: bool, only_check: bool, as_json: bool
) -> None:
    """Give a stopped node, on its machine, the data of a backup.

    Everything is compared with the backup's hashes before it is in place. Files that the configuration names are
    written where they are missing. Start the node afterwards: it serves its users once it has what the other nodes
    have. Run it as the node's user. After an interrupt, SIGTERM or SIGHUP the node has either its former data or that
    of the backup; run the command again to continue. Exit code 0 if the backup is sound and, without --check, in
    place; 1 otherwise.
    """
    if replace and only_check:
        raise click.UsageError("--replace and --check exclude each other")
    config = config_argument(config_file)
    from replicator.backup import restoring  # noqa: PLC0415  takes long
    from replicator.backup.places import place_of  # noqa: PLC0415  takes long
    from replicator.cli.commands.repair.backup_errors import in_one_line  # noqa: PLC0415  takes long
    from replicator.node_parts import umask_of  # noqa: PLC0415  takes long

    os.umask(umask_of(config))
    with in_one_line(f"the restore from {source}"), bar("Reading MiB") as show:
        place = place_of(source, endpoint or config.checkpoint.endpoint, config.node.data)

        def tell(done: int, total: int) -> None:
            show(done // MIB, total // MIB)

        if only_check:
            result = restoring.check_backup(config, place, tell)
        else:
            result = restoring.restore(config, place, tell, replace=replace)
    if as_json:
        echo_json(asdict(result))
    else:
        _print(result)


def _print(result: Restored) -> None:
    when = datetime.fromtimestamp(result.started_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
    what = f"the backup of {result.node} from {when}, {counted(result.files, 'file')}, {size(result.size_bytes)}"
    click.echo(f"{what}, is {'in place; start the node' if result.is_in_place else 'sound'}")
    if result.set_aside:
        click.echo(f"what the node had is kept in {result.set_aside}; remove it once nothing is missed")
    if result.lacking:
        click.echo(f"to come from other nodes: {counted(result.lacking, 'attachment')}; run `replicator scrub` later")
    for file in result.kept:
        click.echo(f"{file} was left as it is; the backup has another one")
