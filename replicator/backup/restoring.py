"""The restoring of a backup, at a node that does not run.

The new database is made beside the old one. Attachments go to where the node has its own, under new names, so that
nothing of the old state changes. In the end the new database takes the old one's name, by one rename: before it the
node has all that it had, after it what the backup has.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from replicator.backup import database
from replicator.backup.attachments import Attacher, attachments_of
from replicator.backup.errors import BackupError
from replicator.backup.manifest import DATABASE, MANIFEST, Manifest, SavedFile, kept_files, unpacked
from replicator.backup.places import Directory, MissingFileError, Place, Take, check_room, read_checked, sync
from replicator.config import Config
from replicator.node_parts import make_directory
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY
from replicator.runtime.files.line_files import write_lines
from replicator.store.attachments.files import MissingError
from replicator.store.db import schema
from replicator.store.repair.database_swap import check_none

_BESIDE = ("-wal", "-shm", "")  # the log first: no other database may take it for its own


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore, or of a check, after which `is_in_place` is False.

    `set_aside`: the directory with the former database and attachments. `lacking`: attachments that are to come from
    other nodes. `kept`: files of the configuration that differ from those of the backup and were left alone.
    """

    source: str
    node: str
    cluster: str
    started_ms: int
    files: int
    size_bytes: int
    is_in_place: bool
    set_aside: str | None
    lacking: int
    kept: list[str]


def read_manifest(config: Config, place: Place) -> Manifest:
    """Return the manifest of a backup that this node can use. Raises BackupError, OSError."""
    text = bytearray()
    try:
        place.read(MANIFEST, text.extend)
    except MissingFileError as error:
        raise BackupError(f"{place}: there is no {MANIFEST}: this is no backup, or an unfinished one") from error
    manifest = unpacked(bytes(text), str(place))
    manifest.check_owner(config.node.id, config.node.cluster)
    database.check_schema(manifest.schema)
    return manifest


def check_backup(config: Config, place: Place, tell: database.Tell) -> Restored:
    """Read all of a backup and compare it with its manifest. Raises BackupError, OSError, sqlite3.Error."""
    manifest = read_manifest(config, place)
    done_bytes, all_bytes = 0, _size_of(manifest)
    for file in manifest.files:
        read_checked(place, file, lambda _piece: None)
        done_bytes += file.size_bytes
        tell(done_bytes, all_bytes)
    if isinstance(place, Directory):
        database.check(place.path / DATABASE)
    return _told(place, manifest, is_in_place=False, lacking=len(manifest.lacking))


def restore(config: Config, place: Place, tell: database.Tell, *, replace: bool) -> Restored:
    """Put a backup in the place of what the node has, which with `replace` is set aside.

    Interrupted at any moment, it leaves the node as it was or as the backup has it, and can be run again. Raises
    BackupError, DataError if the node runs, ConfigError, OSError, sqlite3.Error.
    """
    manifest = read_manifest(config, place)
    make_directory(config.node.data)
    path = config.node.database
    with schema.exclusive(path), _naming_the_file():
        check_none(path)
        if not replace and path.exists():
            raise BackupError(f"{path} is there already; give `--replace` to set it aside, and have the backup instead")
        return _Restoring(config, place, manifest, tell).run()


class _Restoring:
    def __init__(self, config: Config, place: Place, manifest: Manifest, tell: database.Tell) -> None:
        self._config, self._place, self._manifest, self._tell = config, place, manifest, tell
        self._path = config.node.database
        self._new = self._path.with_name(f"{self._path.name}.restore")
        self._files = {file.name: file for file in manifest.files}
        self._done_bytes, self._all_bytes = 0, _size_of(manifest)

    def run(self) -> Restored:
        _remove_with_log(self._new)  # of an interrupted restore
        self._check_links()
        self._check_room()
        try:
            self._fetch_database()
            attacher = Attacher(attachments_of(self._config), self._files, self._read)
            owner = (self._config.node.id, self._config.node.cluster)
            database.prepare(self._new, owner, attacher.attach)
            sync(self._new)
            kept = self._restore_files()
            set_aside = self._set_aside()
            self._swap()
        finally:
            _remove_with_log(self._new)
        return _told(
            self._place,
            self._manifest,
            is_in_place=True,
            lacking=attacher.lacking,
            set_aside=str(set_aside) if set_aside else None,
            kept=kept,
        )

    def _check_room(self) -> None:
        """Check for room for everything, also for attachments that are there already."""
        database_bytes = self._files[DATABASE].size_bytes
        others_bytes = self._all_bytes - database_bytes
        data, elsewhere = self._config.node.data, self._config.content.attachments
        if elsewhere is None:
            check_room(data, self._all_bytes, "what the backup has")
            return
        make_directory(elsewhere, "content.attachments")
        check_room(data, database_bytes, "the database of the backup")
        check_room(elsewhere, others_bytes, "what the backup has of attachments")

    def _check_links(self) -> None:
        """Check, before much is read, that the old attachments can get second names. Raises BackupError."""
        attachments, trial = self._attachments_to_set_aside(), self._path.with_name(f"{self._new.name}.link")
        trial.unlink(missing_ok=True)
        if not self._path.exists() or attachments is None:
            return
        for file in (path for path in attachments.rglob("*") if path.is_file()):
            try:
                os.link(file, trial)
            except OSError as error:
                raise BackupError(
                    f"{attachments} cannot be set aside by hard links in {self._path.parent}: {_words_of(error)}; if it"
                    " is another disk, name its directory in `content.attachments`: it is left alone then"
                ) from error
            trial.unlink()
            return

    def _attachments_to_set_aside(self) -> Path | None:
        attachments = self._path.with_name("attachments")
        return attachments if self._config.content.attachments is None and attachments.is_dir() else None

    def _fetch_database(self) -> None:
        with open(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as made:  # noqa: PTH123
            self._read(self._files[DATABASE], made.write)

    def _read(self, file: SavedFile, take: Take) -> None:
        def told(piece: bytes) -> None:
            take(piece)
            self._done_bytes += len(piece)
            self._tell(self._done_bytes, self._all_bytes)

        read_checked(self._place, file, told)

    def _restore_files(self) -> list[str]:
        """Write the files of the configuration that are missing; return those that are there and differ."""
        differing: list[str] = []
        for name, path in kept_files(self._config).items():
            if name not in self._files:
                continue
            text = bytearray()
            self._read(self._files[name], text.extend)
            if not path.exists():
                write_lines(path, [bytes(text)])
            elif path.read_bytes() != text:
                differing.append(str(path))
        return differing

    def _set_aside(self) -> Path | None:
        """Give the old database and the old attachments second names, in a directory that appears when it is whole."""
        data, unfinished = self._path.parent, self._path.with_name("replaced.unfinished")
        _remove_tree(unfinished)
        if not self._path.exists():
            return None
        for earlier in data.glob("replaced.*"):
            database_aside, log_name = earlier / self._path.name, f"{self._path.name}-wal"
            if database_aside.exists() and database_aside.samefile(self._path):  # interrupted just before the swap
                if (earlier / log_name).exists() and not (data / log_name).exists():  # interrupted in it
                    return earlier
                earlier.rename(unfinished)
                _remove_tree(unfinished)
        database.fold_log(self._path)
        unfinished.mkdir(PRIVATE_DIRECTORY)
        if (attachments := self._attachments_to_set_aside()) is not None:
            shutil.copytree(attachments, unfinished / attachments.name, copy_function=os.link)
        for old in (self._path.with_name(f"{self._path.name}-wal"), self._path):
            if old.exists():  # the log only if the database is damaged
                os.link(old, unfinished / old.name)
        sync(unfinished)
        aside = data / f"replaced.{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"
        while aside.exists():  # of another restore in the same second
            aside = aside.with_name(f"{aside.name}_")
        return unfinished.rename(aside)

    def _swap(self) -> None:
        for suffix in _BESIDE[:2]:
            self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)
        self._new.rename(self._path)
        sync(self._path.parent)


def _size_of(manifest: Manifest) -> int:
    return sum(file.size_bytes for file in manifest.files)


def _told(
    place: Place,
    manifest: Manifest,
    *,
    is_in_place: bool,
    lacking: int,
    set_aside: str | None = None,
    kept: list[str] | None = None,
) -> Restored:
    return Restored(
        str(place),
        manifest.node,
        manifest.cluster,
        manifest.started_ms,
        files=len(manifest.files),
        size_bytes=_size_of(manifest),
        is_in_place=is_in_place,
        set_aside=set_aside,
        lacking=lacking,
        kept=kept or [],
    )


def _remove_tree(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _remove_with_log(path: Path) -> None:
    for suffix in _BESIDE:
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _words_of(error: OSError) -> str:
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])  # the first of all files that could not be copied
    return error.strerror or str(error)


@contextmanager
def _naming_the_file() -> Iterator[None]:
    """Turn errors of files into BackupError: what is around this block would blame them on the old database."""
    try:
        yield
    except MissingError as error:
        raise BackupError(f"an attachment was removed meanwhile: {error}; run this again") from error
    except OSError as error:
        raise BackupError(f"{error.filename or 'the disk'}: {_words_of(error)}") from error
    except sqlite3.Error as error:
        raise BackupError(f"the database of the backup cannot be used: {error}") from error
