"""A nameless file for what would take too much memory, for as long as one piece of work lasts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import BinaryIO

from replicator.errors import DiskFullError, UnavailableError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Scratch:
    """The file, which is opened with the first bytes, and vanishes when it is closed. One thread at a time uses it."""

    def __init__(self, open_file: Callable[[], BinaryIO]) -> None:
        """`open_file` opens a nameless file, or raises OSError."""
        self._open_file = open_file
        self._file: BinaryIO | None = None
        self._size_bytes = 0

    def write(self, data: bytes | bytearray) -> int:
        """Write bytes, and return where they are. This may wait for a disk. Raises DiskFullError, UnavailableError."""
        at = self._size_bytes
        self._write(at, data)
        self._size_bytes += len(data)
        return at

    def read(self, at: int, size_bytes: int) -> bytes:
        """Return bytes that were written there. Raises UnavailableError."""
        try:
            data = os.pread(self._file.fileno(), size_bytes, at) if self._file is not None else b""
        except OSError as error:
            raise UnavailableError(f"the disk of this node cannot be read: {error.strerror}; try later") from error
        if len(data) != size_bytes:
            raise UnavailableError("the disk of this node has lost a part of a scratch file; try later")
        return data

    def replace(self, at: int, data: bytes) -> None:
        """Write bytes over others that were written there. Raises DiskFullError, UnavailableError."""
        self._write(at, data)

    def close(self) -> None:
        """Let the file vanish. What is written later begins a new one."""
        if self._file is not None:
            self._file.close()
        self._file, self._size_bytes = None, 0

    def _write(self, at: int, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        try:
            if self._file is None:
                self._file = self._open_file()
            while rest:
                written = os.pwrite(self._file.fileno(), rest, at)
                rest, at = rest[written:], at + written
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(f"the disk of this node takes no more: {error.strerror}; try later") from error
            why = f"a scratch file in the data directory of this node cannot be written: {error.strerror}; try later"
            raise UnavailableError(why) from error
