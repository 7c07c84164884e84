"""`replicator restore`: a backup put into the data directory of a stopped node.

All files are checked before anything is written. The copies lie beside the node's own files until they are complete;
from then on until the end, `node.db.rebuild` keeps the node from starting, whatever interrupts the command.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import click

from replicator.cli.commands.repair.backup import ATTACHMENTS, BUFFER_BYTES, DATABASE, FORMAT, MANIFEST, sync_tree
from replicator.cli.target import CommandError, config_argument
from replicator.errors import DataError
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY
from replicator.store.db.schema import SCHEMA_VERSION, exclusive
from replicator.store.repair.database_swap import replacement_of, take_place


@click.command()
@click.option("--from", "source", required=True, type=click.Path(path_type=Path), help="The directory of the backup.")
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@click.option("--replace", is_flag=True, help="Set the data aside that the node has now.")
@click.option("--check", "only_check", is_flag=True, help="Only check the backup.")
def restore(source: Path, config_file: Path, *, replace: bool, only_check: bool) -> None:
    """Put a backup in place of the data of a stopped node, on its machine.

    Run it as the node's user. Exit code 0 if the backup is sound and, without --check, in place; 1 otherwise.
    """
    config = config_argument(config_file)
    if config.content.attachments is not None and not only_check:
        raise CommandError("`content.attachments` is set: restore by hand what that directory lacks")
    try:
        files = check_backup(source, config.node.id, config.node.cluster)
        if not only_check:
            _put_in_place(source, config.node.data, replace=replace)
    except (DataError, OSError, sqlite3.Error) as error:
        raise CommandError(str(error)) from error
    click.echo(f"{files} files are {'sound' if only_check else 'restored; start the node'}")


def check_backup(source: Path, sid: str, cluster: str) -> int:
    """Check a backup for this node and return its number of files. Raises CommandError, OSError, sqlite3.Error."""
    manifest = source / MANIFEST
    if not manifest.is_file():
        raise CommandError(f"{source}: there is no {MANIFEST}: the backup is unfinished, or this is none")
    try:
        text = manifest.read_text("utf-8")
        *written, own_hash, end = text.split("\n")
        if end or hashlib.sha256("".join(f"{line}\n" for line in written).encode()).hexdigest() != own_hash:
            raise CommandError(f"{manifest}: damaged: its own SHA-256 differs")
        head, *lines = [json.loads(line) for line in written]
        format_version, files = head["format"], head["files"]
        made_for = (head["node"], head["cluster"])
        listed = {str(line["name"]): (line["bytes"], line["sha256"]) for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{manifest}: damaged") from error
    if format_version != FORMAT:
        raise CommandError(f"{manifest}: format {format_version}, but this version reads {FORMAT}")
    if made_for != (sid, cluster):
        raise CommandError(
            f"{source}: a backup of {made_for[0]} in {made_for[1]}, not of {sid} in {cluster}, as configured"
        )
    if len(listed) != files or DATABASE not in listed:
        raise CommandError(f"{manifest}: damaged: it does not list all files")
    for name, expected in listed.items():
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise CommandError(f"{manifest}: damaged: the name {name!r}")
        _check_file(source / name, expected)
    _check_database(source / DATABASE)
    return len(listed)


def _check_file(path: Path, expected: tuple[int, str]) -> None:
    if not path.is_file():
        raise CommandError(f"{path}: missing in the backup")
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while part := content.read(BUFFER_BYTES):
            digest.update(part)
    if (path.stat().st_size, digest.hexdigest()) != expected:
        raise CommandError(f"{path}: damaged: size or SHA-256 is not what the manifest says")


def _check_database(path: Path) -> None:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as copied:
        (version,) = copied.execute("PRAGMA user_version").fetchone()
        (found,) = copied.execute("PRAGMA quick_check(1)").fetchone()
    if not 0 < version <= SCHEMA_VERSION:
        raise CommandError(f"{path}: schema {version}, but this version reads up to {SCHEMA_VERSION}")
    if found != "ok":
        raise CommandError(f"{path}: damaged: {found}")


def _put_in_place(source: Path, data: Path, *, replace: bool) -> None:
    """Replace the node's data. Raises CommandError, DataError if the node runs, OSError."""
    database, attachments = data / DATABASE, data / ATTACHMENTS
    data.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    with exclusive(database):
        if not replace and (database.exists() or attachments.exists()):
            raise CommandError(f"{data} has data; to set it aside, give --replace")
        new_database, new_attachments = data / f"{DATABASE}.restore", data / f"{ATTACHMENTS}.restore"
        if new_attachments.exists():  # of an interrupted restore
            shutil.rmtree(new_attachments)
        new_attachments.mkdir(PRIVATE_DIRECTORY)
        if (source / ATTACHMENTS).is_dir():
            shutil.copytree(source / ATTACHMENTS, new_attachments, dirs_exist_ok=True)
        shutil.copy2(source / DATABASE, new_database)
        sync_tree(data)
        new_database.rename(replacement_of(database))  # the node refuses to start from here on
        sync_tree(data)
        date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        if attachments.exists():
            attachments.rename(data / f"{ATTACHMENTS}.{date}.replaced")
        new_attachments.rename(attachments)
        sync_tree(data)
        take_place(database, date)
