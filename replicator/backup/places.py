"""Places of backups: a directory, or a prefix in an S3 bucket.

Files are written once, each whole or not at all, and the manifest after all others. Data that comes from elsewhere may
raise while it is written: no file is there then.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import trio

from replicator.backup.errors import BackupError
from replicator.backup.manifest import DATABASE, MANIFEST, SavedFile
from replicator.runtime.environment import Environment
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY, PRIVATE_FILE, create_private
from replicator.runtime.objects import NAMES_AT_ONCE, ObjectMissingError, ObjectStore, ObjectStoreError

S3 = "s3://"
READ_BYTES = 1 << 20
UNFINISHED = ".unfinished"
MARK = f"{MANIFEST}{UNFINISHED}"
"""The file that is there from the beginning until the manifest is: nothing else may be written to its place."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Take = Callable[[bytes], object]


class Place(Protocol):
    """A directory or a prefix. All methods raise BackupError, OSError."""

    def begin(self, database_bytes: int, other_bytes: int) -> None:
        """Take the place for a new backup of that size: it must be new or empty, and have room."""
        ...

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Give the path of a new file on a disk, which vanishes at the end of the block unless it has been moved."""
        ...

    def put(self, name: str, data: Iterable[bytes]) -> None:
        """Write a file durably."""
        ...

    def move(self, name: str, file: Path) -> None:
        """Give a file of `local` its name here, durably."""
        ...

    def seal(self, manifest: bytes) -> None:
        """Write the manifest, after which this is a backup."""
        ...

    def discard(self) -> None:
        """Remove all that was written since `begin`, as far as possible."""
        ...

    def read(self, name: str, take: Take) -> None:
        """Pass a file's bytes to `take`, in pieces. Raises MissingFileError."""
        ...


class MissingFileError(BackupError):
    """A file that is not in the backup."""


def place_of(where: str, endpoint: str | None, scratch: Path) -> Place:
    """Return the place. `scratch`: a directory with room for a database, which a bucket needs."""
    return Bucket(where.rstrip("/"), endpoint, scratch) if where.startswith(S3) else Directory(Path(where))


class Directory:
    """A directory on a disk that this machine sees."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_ours = False  # with all that is in it
        self._changed = {path}

    def __str__(self) -> str:
        return str(self.path)

    def begin(self, database_bytes: int, other_bytes: int) -> None:
        """See `Place`."""
        self.path.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        names = {entry.name for entry in self.path.iterdir()}
        if MANIFEST in names:
            raise BackupError(f"{self.path} holds a backup; name a new directory")
        if MARK in names:
            raise BackupError(
                f"{self.path} holds a backup that is being made, or was interrupted: if it was, remove that directory,"
                " or name a new one"
            )
        if names:
            raise BackupError(f"{self.path} is not empty: there is {min(names)!r}; name a new directory")
        check_room(self.path, database_bytes + other_bytes, "the backup")
        try:
            os.close(os.open(self.path / MARK, _NEW, PRIVATE_FILE))
        except FileExistsError as error:
            raise BackupError(
                f"another backup has just been started in {self.path}; name a directory for each"
            ) from error
        self._is_ours = True

    @contextmanager
    def local(self) -> Iterator[Path]:
        """See `Place`."""
        file = self.path / f".{DATABASE}{UNFINISHED}"
        create_private(file)
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)

    def put(self, name: str, data: Iterable[bytes]) -> None:
        """See `Place`."""
        path = self.path / name
        for level in (path.parent.parent, path.parent):
            if level.is_relative_to(self.path):
                level.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
                self._changed.add(level)
        aside = path.with_name(f".{path.name}{UNFINISHED}")
        try:
            with open(os.open(aside, _NEW, PRIVATE_FILE), "wb") as file:  # noqa: PTH123 - it is open already
                file.writelines(data)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def move(self, name: str, file: Path) -> None:
        """See `Place`."""
        sync(file)
        file.rename(self.path / name)

    def seal(self, manifest: bytes) -> None:
        """See `Place`."""
        for directory in sorted(self._changed):
            sync(directory)
        self.put(MANIFEST, [manifest])
        (self.path / MARK).unlink()
        sync(self.path)
        with suppress(PermissionError):  # reading the directory above may be forbidden
            sync(self.path.absolute().parent)

    def discard(self) -> None:
        """See `Place`. The directory itself stays."""
        if not self._is_ours:
            return
        with suppress(OSError):
            for path in self.path.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != MARK:
                    path.unlink()
            (self.path / MARK).unlink()

    def read(self, name: str, take: Take) -> None:
        """See `Place`."""
        try:
            with (self.path / name).open("rb") as file:
                while piece := file.read(READ_BYTES):
                    take(piece)
        except FileNotFoundError as error:
            raise MissingFileError(f"{self.path}: there is no {name}") from error


class Bucket:
    """A prefix in S3, or in a server compatible with it."""

    def __init__(self, url: str, endpoint: str | None, scratch: Path) -> None:
        self._url, self._scratch = url, scratch
        self._store = ObjectStore(url, Environment(), endpoint, settings="the place of the backup and `--endpoint`")
        self._mark = f".{MANIFEST}.{secrets.token_hex(8)}{UNFINISHED}"
        self._is_ours = False  # with all that is under the prefix

    def __str__(self) -> str:
        return self._url

    def begin(self, database_bytes: int, other_bytes: int) -> None:
        """See `Place`. A bucket has room; the database needs it on the disk, where it is copied first."""
        del other_bytes
        check_room(self._scratch, database_bytes, "the copy of the database, which is uploaded from there,")
        with _translated():  # each of two puts a mark, then lists: at least one sees the other's
            trio.run(self._store.put, self._mark, [])
            other = trio.run(self._other)
            if other is None:
                self._is_ours = True
                return
            trio.run(self._store.delete, [self._mark])
        what = "holds a backup" if other == MANIFEST else f"is not empty: there is {other!r}"
        raise BackupError(f"{self._url} {what}; name a new prefix")

    async def _other(self) -> str | None:
        """Return the name of an object that is not this backup's mark, the manifest if it is there; else None."""
        if await self._store.exists(MANIFEST):
            return MANIFEST
        async with aclosing(self._store.list()) as listing:
            async for found in listing:
                if found.name != self._mark:
                    return found.name
        return None

    @contextmanager
    def local(self) -> Iterator[Path]:
        """See `Place`. What a process left that was killed is used again."""
        file = self._scratch / f"{DATABASE}.backup"
        create_private(file)
        with file.open("r+b") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BackupError(f"{file}: another backup is being made; wait until it is done") from error
            held.truncate()
            try:
                yield file
            finally:
                file.unlink(missing_ok=True)

    def put(self, name: str, data: Iterable[bytes]) -> None:
        """See `Place`."""
        with _translated():
            trio.run(self._store.put, name, data)

    def move(self, name: str, file: Path) -> None:
        """See `Place`."""
        with file.open("rb") as source:
            self.put(name, iter(lambda: source.read(READ_BYTES), b""))
        file.unlink()

    def seal(self, manifest: bytes) -> None:
        """See `Place`."""
        self.put(MANIFEST, [manifest])
        with _translated():
            trio.run(self._store.delete, [self._mark])

    def discard(self) -> None:
        """See `Place`."""
        if self._is_ours:
            with suppress(ObjectStoreError):
                trio.run(self._delete_all)

    async def _delete_all(self) -> None:
        names: list[str] = []
        async with aclosing(self._store.list()) as listing:
            async for found in listing:
                names.append(found.name)
                if len(names) == NAMES_AT_ONCE:
                    await self._store.delete(names)
                    names.clear()
        await self._store.delete(names)

    def read(self, name: str, take: Take) -> None:
        """See `Place`."""

        async def download() -> None:
            async with aclosing(self._store.get(name)) as pieces:
                async for piece in pieces:
                    take(piece)

        try:
            with _translated():
                trio.run(download)
        except ObjectMissingError as error:
            raise MissingFileError(f"{self._url}: there is no {name}") from error


def read_checked(place: Place, file: SavedFile, take: Take) -> None:
    """Read a file of a backup, and compare it with what the manifest says. Raises BackupError, OSError."""
    hasher, size_bytes = hashlib.sha256(), 0

    def hashed(piece: bytes) -> None:
        nonlocal size_bytes
        hasher.update(piece)
        size_bytes += len(piece)
        take(piece)

    place.read(file.name, hashed)
    if (size_bytes, hasher.hexdigest()) != (file.size_bytes, file.sha256):
        raise BackupError(f"{place}/{file.name}: damaged: size or SHA-256 is not what the manifest says")


def check_room(directory: Path, need_bytes: int, what: str) -> None:
    """Raise BackupError if the file system has less room than that. Raises OSError."""
    state = os.statvfs(directory)
    free_bytes = state.f_bavail * state.f_frsize
    if state.f_blocks and free_bytes < need_bytes:  # some file systems do not report their size
        raise BackupError(
            f"{directory} has {free_bytes >> 20} MiB free, and {what} takes about {(need_bytes >> 20) + 1} MiB"
        )


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the object store's errors into BackupError, but for that of a missing object."""
    try:
        yield
    except ObjectMissingError:
        raise
    except ObjectStoreError as error:
        raise BackupError(str(error)) from error
