"""Targets of an inventory: a directory on the node's machine, or a prefix in an S3 bucket.

A file appears under its name only when it is complete and durable. In a directory it is written under another name,
fsynced and renamed; for a bucket it is written to an unnamed file on the node's disk, then uploaded by
`replicator.runtime.objects`. The target is checked first: an inventory never overwrites a complete one, nor mixes with
other files. Two inventories that begin in one place do not mix: files in a directory are created exclusively, and in a
bucket an object marks the place as taken while an inventory is written. An incomplete inventory is removed, so that it
does not keep a disk full.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import trio

from replicator.runtime.environment import Environment, open_scratch
from replicator.runtime.files.disk_room import LookAt
from replicator.runtime.objects import ObjectStore, ObjectStoreError
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.room import check_room
from replicator.store.inventory.written import Written
from resync.inventory import MANIFEST, TABLES

READ_BYTES = 1 << 20
NAMES_MAX = 100_000  # names read at most: those of a trillion rows
ASIDE = ".unfinished"
S3 = "s3://"
_APART = "name a separate place for each"

_PART, _ASIDE = r"part-\d{5,}\.parquet", re.escape(ASIDE)
_MARK = r"(?:\.[0-9a-f]{16})?"
_OURS = re.compile(rf"(?:{'|'.join(TABLES)})/(?:{_PART}|\.{_PART}{_ASIDE})|\.{re.escape(MANIFEST)}{_MARK}{_ASIDE}")


class Target(Protocol):
    """A directory or a prefix. `files` and `size_bytes` count what has been written."""

    files: int
    size_bytes: int

    def prepare(self, *, overwrite: bool) -> None:
        """Prepare the target for a new inventory. Raises TargetError, OSError, ObjectStoreError."""
        ...

    def check_room(self) -> None:
        """Check for room before a large write. Raises TargetError if there is too little, OSError."""
        ...

    def writing(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing, which appears once the block has ended without an error.

        Raises TargetError, OSError, ObjectStoreError.
        """
        ...

    def discard(self) -> None:
        """Remove what this process wrote, as far as possible, and nothing else. Any thread may, at any time."""
        ...


@contextmanager
def whole_or_nothing(target: Target) -> Iterator[None]:
    """Remove what the block wrote to the target if the block fails."""
    try:
        yield
    except BaseException:
        target.discard()
        raise


def target_of(to: str, endpoint: str | None, scratch: Path) -> Target:
    """Return the target for `to`; see `Order`."""
    return Bucket(to, endpoint, scratch) if to.startswith(S3) else Directory(Path(to))


def left_overs(to: str, names: set[str], *, overwrite: bool) -> list[str]:
    """Return names of an incomplete inventory at the target, to be removed. Raises TargetError if they must not be."""
    if MANIFEST in names:
        raise TargetError(f"{to} holds a complete inventory; name another place, or remove that inventory")
    if foreign := [name for name in names if not _OURS.fullmatch(name)]:
        raise TargetError(f"{to} holds other things, such as {min(foreign)!r}; name an empty or a new place")
    if names and not overwrite:
        what = "an incomplete inventory, which was interrupted or which another node is writing now"
        raise TargetError(f"{to} holds {what}; if it was interrupted, start again with `--overwrite`")
    return sorted(names)


class Directory:
    """A directory on a disk that the node's machine sees."""

    def __init__(self, path: Path, look_at: LookAt = os.statvfs) -> None:
        self.files = self.size_bytes = 0
        self._path, self._look_at = path, look_at
        self._written = Written()

    def prepare(self, *, overwrite: bool) -> None:
        """See `Target`. A new directory is accessible to its owner only."""
        if not self._path.is_dir():
            new = [level for level in (self._path, *self._path.parents) if not level.exists()]
            for level in reversed(new):
                self._written.make_directory(level)
            self._path.mkdir(exist_ok=True)  # raises if it is no directory
            for level in new:
                with suppress(PermissionError):  # reading the directory above may be forbidden
                    _sync(level.parent)
        for name in left_overs(str(self._path), self._names(), overwrite=overwrite):
            (self._path / name).unlink()

    def _names(self) -> set[str]:
        """Return all names in the directory, descending only into the tables' directories. Links are not followed."""
        found: set[str] = set()
        for directory, folders, files in os.walk(self._path, onerror=_raised):
            where = Path(directory).relative_to(self._path)
            ours = [one for one in folders if str(where / one) in TABLES and not Path(directory, one).is_symlink()]
            found.update(str(where / one) for one in {*files, *folders} - {*ours})
            folders[:] = ours
            if len(found) > NAMES_MAX:
                raise TargetError(f"{self._path} holds more than {NAMES_MAX} files; name an empty or a new place")
        return found

    def check_room(self) -> None:
        """See `Target`."""
        check_room(self._path, self._look_at)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """See `Target`. Of two writers in one place, the second to begin a file raises TargetError."""
        self.check_room()
        path = self._path / name
        aside = path.with_name(f".{path.name}{ASIDE}")
        self._written.make_directory(path.parent)
        if name == MANIFEST:
            self._written.check_whole()
        with self._begun(path, aside) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                self._written.finish(aside, path)
            except BaseException:
                self._written.drop(aside)
                raise
            self.size_bytes += file.tell()
        for directory in {path.parent, self._path}:
            _sync(directory)
        self.files += 1

    def _begun(self, path: Path, aside: Path) -> BinaryIO:
        """Begin a file. Raises TargetError if another process has begun or finished it since the target was checked."""
        with suppress(FileExistsError):
            file = self._written.begin(aside)
            if not path.exists():
                return file
            self._written.drop(aside)
            file.close()
        raise TargetError(f"another inventory has just been started in {self._path}; {_APART}")

    def discard(self) -> None:
        """See `Target`."""
        self._written.remove()


class Bucket:
    """A prefix in S3. `scratch`: a directory with room for one file."""

    def __init__(self, url: str, endpoint: str | None, scratch: Path, look_at: LookAt = os.statvfs) -> None:
        self.files = self.size_bytes = 0
        self._url = url
        self._scratch, self._look_at = scratch, look_at
        self._uploaded: list[str] = []
        self._mark = f".{MANIFEST}.{secrets.token_hex(8)}{ASIDE}"
        self._store = ObjectStore(url, Environment(), endpoint, settings="`--to` and `--endpoint`")

    def prepare(self, *, overwrite: bool) -> None:
        """See `Target`."""
        names = left_overs(self._url, trio.run(self._names), overwrite=overwrite)
        trio.run(self._store.delete, names)
        with whole_or_nothing(self):  # each of two puts a mark, then lists: at least one sees the other's
            self._uploaded.append(self._mark)
            trio.run(self._store.put, self._mark, [])
            if trio.run(self._names) != {self._mark}:
                raise TargetError(f"another inventory has just been started in {self._url}; {_APART}")

    async def _names(self) -> set[str]:
        found: set[str] = set()
        async with aclosing(self._store.list()) as listing:
            async for info in listing:
                found.add(info.name)
                if len(found) > NAMES_MAX:
                    raise TargetError(f"{self._url} holds more than {NAMES_MAX} objects; name a new prefix")
        return found

    def check_room(self) -> None:
        """See `Target`. Files are first written to the node's disk."""
        check_room(self._scratch, self._look_at)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """See `Target`. An upload has no time limit of its own: each of its requests has one."""
        self.check_room()
        with open_scratch(self._scratch) as file:
            yield file
            size_bytes = file.tell()
            file.seek(0)
            self._check_mark()
            self._uploaded.append(name)  # before the upload: after a failure the object may exist
            trio.run(self._store.put, name, iter(lambda: file.read(READ_BYTES), b""))
        self.size_bytes += size_bytes
        self.files += 1
        if name == MANIFEST:
            with suppress(ObjectStoreError):  # beside the manifest the mark has no meaning
                trio.run(self._store.delete, [self._mark])

    def _check_mark(self) -> None:
        """Raise TargetError if another inventory has begun here since: no object here belongs to this one any more."""
        if self._mark not in trio.run(self._names):
            self._uploaded = []
            raise TargetError(f"another inventory has since been started in {self._url}; {_APART}")

    def discard(self) -> None:
        """See `Target`. An upload under way may still complete."""
        with suppress(ObjectStoreError):
            trio.run(self._store.delete, self._uploaded[::-1])


def why(to: str, error: OSError | ObjectStoreError | TargetError) -> str:
    """Return the reason why writing failed, in one line, for the operator."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or to}: {error.strerror or error}; is there room, and may the node write there?"


def _raised(error: OSError) -> None:
    raise error


def _sync(directory: Path) -> None:
    """Make the directory's entries survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
