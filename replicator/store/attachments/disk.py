"""A directory of a real file system, local or shared."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from replicator.store.attachments.files import MissingError, Outcome

_MISSING = frozenset({errno.ENOENT, errno.ESTALE})  # NFS: removed by another machine
_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY})  # Linux says the latter of a directory that is not empty
_REFUSED = frozenset({errno.EACCES, errno.EPERM})  # CIFS and VFAT, of a rename onto a directory
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class DiskWriter:
    """A new file. Nothing is buffered here."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_open = True

    def write(self, data: bytes) -> None:
        """See `Writer`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        """See `Writer`."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """See `Writer`."""
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)


class DiskFiles:
    """See `Files`. `root` is made by `make_directory("")`, with all above it, if it is not there."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def make_directory(self, name: str) -> Outcome:
        """See `Files`."""
        return _outcome(self._path(name).mkdir if name else self._make_root)

    def create_file(self, name: str) -> Outcome:
        """See `Files`."""
        return _outcome(lambda: os.close(os.open(self._path(name), _NEW, 0o666)))

    def open_new(self, name: str) -> DiskWriter:
        """See `Files`."""
        try:
            return DiskWriter(os.open(self._path(name), _NEW, 0o666))
        except OSError as error:
            raise _translated(error, name) from error

    def rename(self, old: str, new: str) -> Outcome:
        """See `Files`. Where a refusal only means that the name is taken, the other file systems' answer is given."""
        try:
            return _outcome(lambda: self._rename(self._path(old), self._path(new)))
        except OSError as error:
            if error.errno in _REFUSED and self._path(new).is_dir():
                return Outcome.EXISTS
            raise

    def remove_file(self, name: str) -> Outcome:
        """See `Files`."""
        return _outcome(self._path(name).unlink)

    def remove_directory(self, name: str) -> Outcome:
        """See `Files`."""
        return _outcome(self._path(name).rmdir)

    def sync_directory(self, name: str) -> Outcome:
        """See `Files`."""
        return _outcome(lambda: _sync(self._path(name)))

    def names(self, name: str) -> Iterator[str]:
        """See `Files`."""
        try:
            with os.scandir(self._path(name)) as entries:
                for entry in entries:
                    yield entry.name
        except OSError as error:
            raise _translated(error, name) from error

    def read(self, name: str, start: int, length: int) -> bytes:
        """See `Files`."""
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read(descriptor, start, length)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _translated(error, name) from error

    def size(self, name: str) -> int:
        """See `Files`."""
        try:
            return self._path(name).stat().st_size
        except OSError as error:
            raise _translated(error, name) from error

    def _make_root(self) -> None:
        """So that a power cut does not take it back: what is in it is synced by whoever made that."""
        new = [level for level in (self._root, *self._root.parents) if not level.exists()]
        self._root.mkdir(parents=True)
        for level in new:
            _sync(level.parent)

    def _rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def _path(self, name: str) -> Path:
        return self._root / name


def _outcome(step: Callable[[], object]) -> Outcome:
    try:
        step()
    except OSError as error:
        if error.errno in _MISSING:
            return Outcome.MISSING
        if error.errno in _EXISTS:
            return Outcome.EXISTS
        raise
    return Outcome.DONE


def _translated(error: OSError, name: str) -> Exception:
    return MissingError(name) if error.errno in _MISSING else error


def _read(descriptor: int, start: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(descriptor, length, start)):
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        with suppress(OSError):
            os.close(descriptor)
