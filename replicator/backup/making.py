"""The making of a backup, beside the node that runs.

The database is copied first, then the attachments that the copy refers to. The node goes on: it may remove some of them
meanwhile, because their mail was expunged longer ago than `content.keep_expunged`, or because that is shorter than the
backup takes. They are left out, and counted.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from replicator.backup import database
from replicator.backup.attachments import attachments_of
from replicator.backup.errors import BackupError
from replicator.backup.manifest import DATABASE, Manifest, SavedFile, attachment_name, kept_files
from replicator.backup.places import READ_BYTES, S3, Place
from replicator.config import Config
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import MissingError
from replicator.store.db.schema import WAL_BYTES


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made. `size_bytes`: of its files.

    `expunged`: attachments that the node removed meanwhile. `lacking`: hashes of attachments that the node itself does
    not have whole.
    """

    to: str
    node: str
    cluster: str
    files: int
    size_bytes: int
    attachments: int
    expunged: int
    lacking: list[str]


class _UnusableError(Exception):
    """Content of an attachment that is gone, cannot be read or has another hash."""


def back_up(config: Config, place: Place, tell: database.Tell) -> Backup:
    """Make a backup. If that fails, nothing is left of it. Raises BackupError, OSError, sqlite3.Error, DataError."""
    with closing(database.opened(config.node.database)) as live:
        owner = database.owner_of(live)
        if owner[:2] != (config.node.id, config.node.cluster):
            raise BackupError(
                f"{config.node.database} is the database of node {owner.node} in cluster {owner.cluster}, not of"
                f" {config.node.id} in {config.node.cluster}"
            )
        making = _Making(config, place, live, owner, tell)
        try:
            return making.run()
        except BaseException:
            place.discard()
            raise


def check_apart(config: Config, to: str) -> None:
    """Raise BackupError for a backup inside of what it is to save."""
    if to.startswith(S3):
        return
    target = Path(to).resolve()
    for directory in filter(None, (config.node.data, config.content.attachments)):
        if target.is_relative_to(directory.resolve()):
            raise BackupError(f"{to} is in {directory}, with which it would be lost; name a directory on another disk")


class _Making:
    """One backup. `live` is a connection to the node's database."""

    def __init__(
        self, config: Config, place: Place, live: sqlite3.Connection, owner: database.Owner, tell: database.Tell
    ) -> None:
        self._config, self._place, self._live, self._owner = config, place, live, owner
        self._tell = tell
        self._done_bytes = self._all_bytes = 0
        self._files: list[SavedFile] = []
        self._expunged = 0
        self._lacking: list[str] = []
        self._attachments = attachments_of(config)

    def run(self) -> Backup:
        started_ms = time.time_ns() // 1_000_000
        database_bytes, other_bytes = database.size_bytes(self._live), self._size_of_attachments()
        self._all_bytes = database_bytes + other_bytes
        data = self._config.node.data
        self._place.begin(database_bytes, other_bytes)
        with self._place.local() as file:
            database.copy(self._config.node.database, file, _room_for_log(data, file, database_bytes), self._show)
            self._done_bytes = database_bytes
            with closing(database.opened_copy(file)) as copied:
                for content_hash, holdings in database.attachments(copied):
                    self._save_attachment(content_hash, holdings)
            for name, path in kept_files(self._config).items():
                if path.exists():
                    self._save(name, _pieces_of(path))
            for _ in self._hashed(DATABASE, _pieces_of(file)):
                pass
            self._place.move(DATABASE, file)
        owner, saved = self._owner, tuple(self._files)
        manifest = Manifest(owner.node, owner.cluster, owner.schema, started_ms, tuple(self._lacking), saved)
        self._place.seal(manifest.packed())
        return Backup(
            str(self._place),
            owner.node,
            owner.cluster,
            files=len(saved),
            size_bytes=sum(file.size_bytes for file in saved),
            attachments=sum(file.name.startswith("attachments/") for file in saved),
            expunged=self._expunged,
            lacking=self._lacking,
        )

    def _size_of_attachments(self) -> int:
        total = 0
        for _, holdings in database.attachments(self._live):
            for holding in holdings[:1]:
                try:
                    total += self._attachments.size(holding)
                except MissingError:
                    continue
        return total

    def _save_attachment(self, content_hash: bytes, holdings: Sequence[Holding]) -> None:
        """Save the content from whichever reference leads to it, also from one that has come since."""
        now = False
        while True:
            for holding in holdings:
                try:
                    self._save(attachment_name(content_hash), self._content(holding))
                except _UnusableError:
                    continue
                return
            if now:
                self._lacking.append(content_hash.hex())
                return
            now, holdings = True, database.references(self._live, content_hash)
            if not holdings:
                self._expunged += 1
                return

    def _content(self, holding: Holding) -> Iterator[bytes]:
        """Yield the content. Raises _UnusableError, at the end if it has another hash."""
        hasher, at = self._attachments.algorithms.new(holding.hash), 0
        try:
            while piece := self._attachments.read(holding, at, READ_BYTES):
                hasher.update(piece)
                at += len(piece)
                yield piece
        except (MissingError, OSError) as error:
            raise _UnusableError from error
        if hasher.digest() != holding.hash:
            raise _UnusableError
        self._done_bytes += at
        self._show()

    def _save(self, name: str, pieces: Iterator[bytes]) -> None:
        self._place.put(name, self._hashed(name, pieces))

    def _hashed(self, name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Pass the pieces on, and list the file once they are all there."""
        hasher, size_bytes = hashlib.sha256(), 0
        for piece in pieces:
            hasher.update(piece)
            size_bytes += len(piece)
            yield piece
        self._files.append(SavedFile(name, size_bytes, hasher.hexdigest()))

    def _show(self, copying_bytes: int = 0) -> None:
        """Tell what is done, with so much of the file that is not done yet."""
        done = self._done_bytes + copying_bytes
        self._tell(done, max(done, self._all_bytes))


def _room_for_log(data: Path, copy: Path, database_bytes: int) -> int:
    """Return by how much the write-ahead log may grow: half of what is free, and not needed for the copy."""
    free_bytes = shutil.disk_usage(data).free
    if copy.stat().st_dev == data.stat().st_dev:
        free_bytes -= database_bytes
    return max(WAL_BYTES, free_bytes // 2)


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            yield piece
