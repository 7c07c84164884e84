"""A directory in a real file system, local or shared.

Each fsync costs milliseconds. On file systems that write all name changes in order, into one journal, one fsync makes
everything safe that was done before. So a thread that has done nothing since its last fsync need not repeat it, and
consecutive syncs of the algorithms cost one. This holds only if the object synced first was changed last: file content
is touched for that, and the algorithms first sync the directory that they have just changed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ParamSpec

from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY
from replicator.store.attachments import ordering
from replicator.store.attachments.files import MissingError, StepOutcome

_MISSING = frozenset({errno.ENOENT, errno.ESTALE})  # ESTALE: on NFS, removed by another machine
_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY})  # ENOTEMPTY: Linux, of a directory that is not empty
_REFUSED = frozenset({errno.EACCES, errno.EPERM})  # from CIFS and VFAT, of a rename onto a directory
P = ParamSpec("P")

_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class DiskWriter:
    """A new file. Nothing is buffered here."""

    def __init__(self, descriptor: int, files: DiskFiles) -> None:
        self._descriptor, self._files = descriptor, files
        self._is_open = True

    def write(self, data: bytes) -> None:
        """See `Writer`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        """See `Writer`."""
        if self._files.is_ordered:
            os.utime(self._descriptor)
        os.fsync(self._descriptor)
        self._files.note_sync()

    def close(self) -> None:
        """See `Writer`."""
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)


class DiskFiles:
    """A directory as `Files`. `make_directory("")` makes `root`, with all directories above, if it does not exist.

    `is_ordered`: True if name changes reach the disk in order; None: as known of the file system.
    """

    def __init__(self, root: Path, *, is_ordered: bool | None = None) -> None:
        self._root = root.absolute()
        self._prefix = f"{self._root}/"
        self._is_ordered = is_ordered
        self._synced = threading.local()

    @cached_property
    def is_ordered(self) -> bool:
        """True if one sync makes all earlier changes safe, whatever it syncs. Determined once the directory exists."""
        return ordering.is_ordered(self._root) if self._is_ordered is None else self._is_ordered

    def note_sync(self) -> None:
        """Note that this thread has synced all that it did, if the file system is ordered."""
        self._synced.is_all = self.is_ordered

    def make_directory(self, name: str) -> StepOutcome:
        """See `Files`."""
        return _outcome(os.mkdir, self._path(name)) if name else _outcome(self._make_root)

    def create_file(self, name: str) -> StepOutcome:
        """See `Files`."""
        return _outcome(self._create, self._path(name))

    def open_new(self, name: str) -> DiskWriter:
        """See `Files`."""
        try:
            return DiskWriter(os.open(self._path(name), _NEW, 0o666), self)
        except OSError as error:
            raise _translated(error, name) from error

    def rename(self, old: str, new: str) -> StepOutcome:
        """See `Files`. A refusal that only means that the name is taken becomes EXISTS, as on other file systems."""
        try:
            return _outcome(self._rename, self._path(old), self._path(new))
        except OSError as error:
            if error.errno in _REFUSED and Path(self._path(new)).is_dir():
                return StepOutcome.EXISTS
            raise

    def remove_file(self, name: str) -> StepOutcome:
        """See `Files`."""
        return _outcome(os.unlink, self._path(name))

    def remove_directory(self, name: str) -> StepOutcome:
        """See `Files`."""
        return _outcome(os.rmdir, self._path(name))

    def sync_directory(self, name: str) -> StepOutcome:
        """See `Files`."""
        if getattr(self._synced, "is_all", False):
            return StepOutcome.DONE
        outcome = _outcome(_sync, self._path(name))
        if outcome is StepOutcome.DONE:
            self.note_sync()
        return outcome

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
            return Path(self._path(name)).stat().st_size
        except OSError as error:
            raise _translated(error, name) from error

    def free_bytes(self) -> int | None:
        """See `Files`."""
        try:
            state = os.statvfs(self._root)
        except OSError:  # not made yet; any other error shows at the next write
            return None
        return state.f_bavail * state.f_frsize if state.f_blocks else None

    def _make_root(self) -> None:
        """Make the root durably; whatever is put into it is synced by its maker."""
        new = [level for level in (self._root, *self._root.parents) if not level.exists()]
        self._root.mkdir(PRIVATE_DIRECTORY, parents=True)
        for level in new:
            _sync(level.parent)

    def _create(self, path: str) -> None:
        """Create an empty file.

        Without a journal, the directory's fsync does not cover the file itself, even an empty one.
        """
        descriptor = os.open(path, _NEW, 0o666)
        try:
            if not self.is_ordered:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _rename(self, old: str, new: str) -> None:
        Path(old).rename(new)

    def _path(self, name: str) -> str:
        """Return the full path for any access. Building a `Path` would take as long as some accesses."""
        self._synced.is_all = False
        return self._prefix + name


def _outcome(step: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> StepOutcome:
    try:
        step(*arguments, **named)
    except OSError as error:
        if error.errno in _MISSING:
            return StepOutcome.MISSING
        if error.errno in _EXISTS:
            return StepOutcome.EXISTS
        raise
    return StepOutcome.DONE


def _translated(error: OSError, name: str) -> Exception:
    return MissingError(name) if error.errno in _MISSING else error


def _read(descriptor: int, start: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(descriptor, length, start)):
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _sync(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        with suppress(OSError):
            os.close(descriptor)
