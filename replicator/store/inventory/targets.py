"""Where an inventory goes: a directory of the node's machine, or a prefix of an S3 bucket.

A file appears under its name when it is whole and safe. In a directory it is written aside, fsynced and renamed; for a
bucket it is written to a file without a name on the node's disk, and then uploaded by `replicator.objects`. What stands
there is looked at first: an inventory is never written over another that is whole, nor among other files.
Two that begin in one place do not mix: files in a directory are created exclusively, and in a bucket an object says
whose the place is, as long as an inventory is written. What comes to nothing is removed again: no disk is kept full.
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

from replicator.environment import Environment, open_scratch
from replicator.objects import ObjectStore, ObjectStoreError
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.room import LookAt, check_room
from replicator.store.inventory.written import Written
from resync.inventory import MANIFEST, TABLES

READ_BYTES = 1 << 20
NAMES_MAX = 100_000  # that are looked at: of a trillion rows
ASIDE = ".unfinished"
S3 = "s3://"
_APART = "name a place of its own for each"

_PART, _ASIDE = r"part-\d{5,}\.parquet", re.escape(ASIDE)
_MARK = r"(?:\.[0-9a-f]{16})?"
_OURS = re.compile(rf"(?:{'|'.join(TABLES)})/(?:{_PART}|\.{_PART}{_ASIDE})|\.{re.escape(MANIFEST)}{_MARK}{_ASIDE}")


class Target(Protocol):
    """A directory or a prefix. `files` and `size_bytes` have been written."""

    files: int
    size_bytes: int

    def prepare(self, *, overwrite: bool) -> None:
        """Make it ready for a new inventory. Raises TargetError, OSError, ObjectStoreError."""
        ...

    def check_room(self) -> None:
        """Before anything large is written. Raises TargetError where the disk has no room for it, OSError."""
        ...

    def writing(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file to write to, which is there once the block has ended without an error.

        Raises TargetError, OSError, ObjectStoreError.
        """
        ...

    def discard(self) -> None:
        """Remove what was written here, as far as that goes, and nothing else. Any thread may, at any time."""
        ...


@contextmanager
def whole_or_nothing(target: Target) -> Iterator[None]:
    """What the block writes to the target is removed if it fails."""
    try:
        yield
    except BaseException:
        target.discard()
        raise


def target_of(to: str, endpoint: str | None, scratch: Path) -> Target:
    """By the form of `to`; see `Order`."""
    return Bucket(to, endpoint, scratch) if to.startswith(S3) else Directory(Path(to))


def left_overs(to: str, names: set[str], *, overwrite: bool) -> list[str]:
    """What stands there and is to go, of an inventory that is not whole. Raises TargetError if that may not be."""
    if MANIFEST in names:
        raise TargetError(f"{to} holds an inventory that is whole; name another place, or remove that one")
    if foreign := [name for name in names if not _OURS.fullmatch(name)]:
        raise TargetError(f"{to} holds other things, such as {min(foreign)!r}; name an empty or a new place")
    if names and not overwrite:
        what = "a part of an inventory, which was cut off, or which another node is writing now"
        raise TargetError(f"{to} holds {what}: if it was cut off, say `--overwrite` to begin it anew")
    return sorted(names)


class Directory:
    """On a disk that the node's machine sees."""

    def __init__(self, path: Path, look_at: LookAt = os.statvfs) -> None:
        self.files = self.size_bytes = 0
        self._path, self._look_at = path, look_at
        self._written = Written()

    def prepare(self, *, overwrite: bool) -> None:
        """See `Target`. A directory that is made is for its owner only."""
        if not self._path.is_dir():
            new = [level for level in (self._path, *self._path.parents) if not level.exists()]
            for level in reversed(new):
                self._written.make_directory(level, 0o700 if level == self._path else 0o777)
            self._path.mkdir(exist_ok=True)  # raises where it is something else
            for level in new:
                with suppress(PermissionError):  # to read the names there
                    _sync(level.parent)
        for name in left_overs(str(self._path), self._names(), overwrite=overwrite):
            (self._path / name).unlink()

    def _names(self) -> set[str]:
        """All that is there, but for directories of tables and what is in other ones. Nothing is behind a link."""
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
        """See `Target`. Of two who write to one place at a time the second one to begin a file raises TargetError."""
        self.check_room()
        path = self._path / name
        aside = path.with_name(f".{path.name}{ASIDE}")
        self._written.make_directory(path.parent, 0o777)
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
        """Raises TargetError if somebody else has begun the same file, or ended it, since the place was looked at."""
        with suppress(FileExistsError):
            file = self._written.begin(aside)
            if not path.exists():
                return file
            self._written.drop(aside)
            file.close()
        raise TargetError(f"another inventory has just been begun in {self._path}; {_APART}")

    def discard(self) -> None:
        """See `Target`."""
        self._written.remove()


class Bucket:
    """In S3. `scratch`: a directory with room for a file."""

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
        with whole_or_nothing(self):  # of two at once each puts a mark, then looks: at least one sees the other's
            self._uploaded.append(self._mark)
            trio.run(self._store.put, self._mark, [])
            if trio.run(self._names) != {self._mark}:
                raise TargetError(f"another inventory has just been begun in {self._url}; {_APART}")

    async def _names(self) -> set[str]:
        found: set[str] = set()
        async with aclosing(self._store.list()) as listing:
            async for info in listing:
                found.add(info.name)
                if len(found) > NAMES_MAX:
                    raise TargetError(f"{self._url} holds more than {NAMES_MAX} objects; name a new prefix")
        return found

    def check_room(self) -> None:
        """See `Target`. A file is written to the node's disk first."""
        check_room(self._scratch, self._look_at)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """See `Target`. An upload takes as long as it takes: each of its requests has a limit."""
        self.check_room()
        with open_scratch(self._scratch) as file:
            yield file
            size_bytes = file.tell()
            file.seek(0)
            self._check_mark()
            self._uploaded.append(name)  # also if it fails: the object may be there
            trio.run(self._store.put, name, iter(lambda: file.read(READ_BYTES), b""))
        self.size_bytes += size_bytes
        self.files += 1
        if name == MANIFEST:
            with suppress(ObjectStoreError):  # beside that it says nothing any more
                trio.run(self._store.delete, [self._mark])

    def _check_mark(self) -> None:
        """Raises TargetError if another inventory has begun anew here: nothing here is ours any more."""
        if self._mark not in trio.run(self._names):
            self._uploaded = []
            raise TargetError(f"another inventory has been begun anew in {self._url} meanwhile; {_APART}")

    def discard(self) -> None:
        """See `Target`. An upload that is under way meanwhile may still come to its end."""
        with suppress(ObjectStoreError):
            trio.run(self._store.delete, self._uploaded[::-1])


def why(to: str, error: OSError | ObjectStoreError | TargetError) -> str:
    """Why nothing more was written there. In a line, for the operator."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or to}: {error.strerror or error}; is there room, and may the node write there?"


def _raised(error: OSError) -> None:
    raise error


def _sync(directory: Path) -> None:
    """Make what it lists survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
