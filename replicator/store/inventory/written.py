"""Record of the files and directories that one process made, so that it can remove these, and nothing else.

A finished file is identified by its inode, size and last change: a file that another process has put in its place is
left alone. If the node cancels the inventory, another thread than the writing one removes the files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TypeAlias

from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY, PRIVATE_FILE
from replicator.store.inventory.errors import TargetError

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_Version: TypeAlias = tuple[int, int, int, int]


class Written:
    """Files and directories made by this process. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._directories: list[Path] = []
        self._begun: dict[Path, BinaryIO] = {}  # not closed
        self._whole: dict[Path, _Version] = {}
        self._is_over = False

    def make_directory(self, path: Path) -> None:
        """Make a directory with access for its owner only. An existing one is not recorded as made here.

        Raises TargetError, OSError.
        """
        with self._lock, suppress(FileExistsError):
            self._check()
            path.mkdir(PRIVATE_DIRECTORY)
            self._directories.append(path)

    def begin(self, path: Path) -> BinaryIO:
        """Create a file with access for its owner only. Call `finish` or `drop` before closing it.

        Raises TargetError, OSError.
        """
        with self._lock:
            self._check()
            file = os.fdopen(os.open(path, FLAGS, PRIVATE_FILE), "wb")
            self._begun[path] = file
            return file

    def finish(self, path: Path, name: Path) -> None:
        """Give a complete file, which was begun as `path`, its name. Raises TargetError, OSError."""
        with self._lock:
            self._check()
            path.rename(name)
            self._whole[name] = _version(os.fstat(self._begun.pop(path).fileno()))

    def check_whole(self) -> None:
        """Check that all files are still there, by size, as not all file systems keep inodes. Raises TargetError."""
        with self._lock:
            for path, (*_, size_bytes) in self._whole.items():
                with suppress(OSError):
                    if path.lstat().st_size == size_bytes:
                        continue
                raise TargetError(
                    f"{path} was removed or changed while the inventory was being written: has another inventory"
                    " been started there? name a separate place for each"
                )

    def drop(self, path: Path) -> None:
        """Remove a begun file, if it still exists."""
        with self._lock:
            self._drop(path)

    def remove(self) -> None:
        """Remove everything in reverse order of creation. Nothing can be made afterwards."""
        with self._lock:
            self._is_over = True
            for path, version in reversed(self._whole.items()):
                with suppress(OSError):
                    if _version(path.lstat()) == version:
                        path.unlink()
            for path in list(self._begun):
                self._drop(path)
            for path in reversed(self._directories):
                with suppress(OSError):  # the directory has files of other processes
                    path.rmdir()
            self._whole, self._directories = {}, []

    def _drop(self, path: Path) -> None:
        file = self._begun.pop(path, None)
        with suppress(OSError):
            if file is not None and os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                path.unlink()

    def _check(self) -> None:
        if self._is_over:
            raise TargetError("the inventory was abandoned")


def _version(state: os.stat_result) -> _Version:
    return state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size
