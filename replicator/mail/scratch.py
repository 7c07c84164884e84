"""A nameless file for what would take too much memory, for as long as one piece of work lasts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

from replicator.errors import DiskFullError, UnavailableError


class Scratch:
    """The file, which is opened with the first bytes, and vanishes when it is closed. One thread at a time uses it."""

    def __init__(self, open_file: Callable[[], BinaryIO]) -> None:
        """`open_file` opens a nameless file, or raises OSError."""
        self._open_file = open_file
        self._file: BinaryIO | None = None
        self._size_bytes = 0

    def write(self, data: bytes | bytearray) -> int:
        """Write bytes, and return where they are. This may wait for a disk. Raises DiskFullError."""
        try:
            if self._file is None:
                self._file = self._open_file()
            written = 0
            while written < len(data):
                written += os.pwrite(self._file.fileno(), data[written:], self._size_bytes + written)
        except OSError as error:
            raise DiskFullError(f"the disk of this node takes no more: {error.strerror}; try later") from error
        self._size_bytes += written
        return self._size_bytes - written

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
        """Write bytes over others that were written there. Raises DiskFullError."""
        try:
            if self._file is not None:
                os.pwrite(self._file.fileno(), data, at)
        except OSError as error:
            raise DiskFullError(f"the disk of this node takes no more: {error.strerror}; try later") from error

    def close(self) -> None:
        """Let the file vanish. What is written later begins a new one."""
        if self._file is not None:
            self._file.close()
        self._file, self._size_bytes = None, 0
