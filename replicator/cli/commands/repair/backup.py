"""`replicator backup`: a copy of a node's data directory, made beside the running node.

The attachments are copied, then the database, then the attachments again. So whatever the copied database refers to is
in the copy even if the node removes it meanwhile: the first pass has what was there before, the second what has come.
Names of attachments are never used twice. The manifest is written last; a backup without it is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from replicator.cli.target import CommandError, config_argument
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY
from replicator.store.attachments.names import HOLDERS, SHA256, Algorithms, s_name

FORMAT = 1
MANIFEST = "manifest.jsonl"
DATABASE = "node.db"
ATTACHMENTS = "attachments"
BUFFER_BYTES = 1 << 20


@click.command()
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="A directory: new or empty.")
def backup(config_file: Path, target: Path) -> None:
    """Copy the database and the attachments of a node, on its machine, while it runs or not.

    Run it as the node's user. Exit code 0 if the backup is complete, 1 otherwise.
    """
    config = config_argument(config_file)
    attachments = config.content.attachments or config.node.data / ATTACHMENTS
    try:
        files = back_up(config.node.data / DATABASE, attachments, target, config.node.id, config.node.cluster)
    except (OSError, sqlite3.Error) as error:
        raise CommandError(f"the backup in {target} is unfinished: {error}") from error
    click.echo(f"{files} files in {target}")


def back_up(database: Path, attachments: Path, target: Path, sid: str, cluster: str) -> int:
    """Make a backup and return its number of files. Raises CommandError, OSError, sqlite3.Error."""
    target.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise CommandError(f"{target} is not empty; give a new directory")
    started_ms = time.time_ns() // 1_000_000
    _copy_new(attachments, target / ATTACHMENTS)
    _copy_database(database, target / DATABASE)
    _copy_new(attachments, target / ATTACHMENTS)
    if missing := _missing(target):
        raise CommandError(f"{missing} attachments of the database are not in {attachments}; run `replicator scrub`")
    return _write_manifest(target, {"format": FORMAT, "node": sid, "cluster": cluster, "started_ms": started_ms})


def _copy_database(source: Path, target: Path) -> None:
    """Copy one moment of the database; the node's writer does not wait. Raises sqlite3.Error."""
    target.touch(0o600)  # SQLite takes an empty file
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)) as found:
        found.execute("VACUUM INTO ?", (str(target),))


def _files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        yield from (Path(folder, name) for name in names)


def _copy_new(source: Path, target: Path) -> None:
    """Copy the files that `target` lacks or that have grown since. Those that vanish meanwhile are left out."""
    for path in _files(source):
        copy = target / path.relative_to(source)
        try:
            found = path.stat()
            if copy.exists() and (copy.stat().st_size, copy.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns):
                continue
            copy.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        except FileNotFoundError:
            if path.exists():
                raise


def sync_tree(directory: Path) -> None:
    """Fsync a directory with everything below it. Raises OSError."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder), *(Path(folder, name) for name in names if not Path(folder, name).is_socket())):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _missing(target: Path) -> int:
    """Return how many attachments of the copied database have no content in the copy."""
    names, missing = Algorithms((SHA256,)), 0
    with closing(sqlite3.connect(target / DATABASE)) as copied:
        for content_hash, holder, kept in copied.execute("SELECT hash, holder, kept FROM attachment"):
            place = target / ATTACHMENTS / (s_name(holder) if kept else names.h_name(content_hash))
            missing += not (place.is_dir() and any(path.name != HOLDERS for path in place.iterdir()))
    return missing


def _write_manifest(target: Path, head: dict[str, object]) -> int:
    """Write the head, each file's name, size and hash, and the hash of all that. All is on disk when this returns."""
    paths = sorted(_files(target))
    lines = [json.dumps({**head, "files": len(paths)})]
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb") as content:
            while part := content.read(BUFFER_BYTES):
                digest.update(part)
        name = path.relative_to(target).as_posix()
        lines.append(json.dumps({"name": name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}))
    text, new = "".join(f"{line}\n" for line in lines), target / f"{MANIFEST}.new"
    new.write_text(f"{text}{hashlib.sha256(text.encode()).hexdigest()}\n", "utf-8")
    sync_tree(target)
    new.rename(target / MANIFEST)
    sync_tree(target)
    return len(paths)
