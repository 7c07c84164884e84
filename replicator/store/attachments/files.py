"""What is asked of a file system.

Names are relative to the store's directory, with slashes; "" is that directory itself. What can be expected to happen
is an `Outcome`; everything else (a full disk, a broken one, no permission) is an OSError.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Protocol


class Outcome(Enum):
    """What came of one step."""

    DONE = "done"
    MISSING = "missing"  # the file or the directory, or one above it
    EXISTS = "exists"  # the name is taken; or the directory to be removed is not empty


class MissingError(Exception):
    """There is no such file or directory, or none above it."""


class Writer(Protocol):
    """A new file that is being written, by one thread at a time."""

    def write(self, data: bytes) -> None:
        """Append. Raises OSError."""
        ...

    def sync(self) -> None:
        """Return when all that was written would survive a power cut. Raises OSError."""
        ...

    def close(self) -> None:
        """Let go of it; may be called again. Raises OSError."""
        ...


class Files(Protocol):
    """A directory in a file system. Any thread may call. All methods may raise OSError."""

    def make_directory(self, name: str) -> Outcome:
        """DONE, MISSING (the one above), EXISTS."""
        ...

    def create_file(self, name: str) -> Outcome:
        """An empty file, exclusively. DONE, MISSING, EXISTS."""
        ...

    def open_new(self, name: str) -> Writer:
        """A file that is not there yet. Raises MissingError, FileExistsError."""
        ...

    def rename(self, old: str, new: str) -> Outcome:
        """DONE, MISSING, EXISTS. A file takes the place of a file, a directory that of an empty one or of none."""
        ...

    def remove_file(self, name: str) -> Outcome:
        """DONE, MISSING."""
        ...

    def remove_directory(self, name: str) -> Outcome:
        """DONE, MISSING, EXISTS: it is not empty."""
        ...

    def sync_directory(self, name: str) -> Outcome:
        """Make what it lists survive a power cut, where the file system can do that.

        DONE, or MISSING; the latter is not said where there was nothing to do.
        """
        ...

    def names(self, name: str) -> Iterator[str]:
        """All that was in the directory all the while, of what changes meanwhile any part. Raises MissingError."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """Bytes of a file, fewer where it ends. Raises MissingError."""
        ...

    def size(self, name: str) -> int:
        """Bytes in a file. Raises MissingError."""
        ...

    def free_bytes(self) -> int | None:
        """Room that is left, for those without privileges; None: that is not known."""
        ...
