"""The interface to a file system.

Names are relative to the store's directory, with slashes; "" is that directory itself. Results that are to be expected
are an `StepOutcome`; everything else (a full disk, a faulty one, no permission) is an OSError.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Protocol


class StepOutcome(Enum):
    """The result of one step."""

    DONE = "done"
    MISSING = "missing"  # the file or directory, or one above it
    EXISTS = "exists"  # the name is taken, or the directory to be removed is not empty


class MissingError(Exception):
    """A file or directory that does not exist, or lies in a directory that does not exist."""


class Writer(Protocol):
    """A new file that is being written, by one thread at a time."""

    def write(self, data: bytes) -> None:
        """Append. Raises OSError."""
        ...

    def sync(self) -> None:
        """Return when everything written would survive a power cut. Raises OSError."""
        ...

    def close(self) -> None:
        """Close the file; may be called again. Raises OSError."""
        ...


class Files(Protocol):
    """A directory in a file system. Any thread may call. All methods may raise OSError."""

    def make_directory(self, name: str) -> StepOutcome:
        """Make a directory. DONE, MISSING (the one above), EXISTS."""
        ...

    def create_file(self, name: str) -> StepOutcome:
        """Create an empty file, exclusively. DONE, MISSING, EXISTS."""
        ...

    def open_new(self, name: str) -> Writer:
        """Create a file that does not exist yet. Raises MissingError, FileExistsError."""
        ...

    def rename(self, old: str, new: str) -> StepOutcome:
        """Rename. DONE, MISSING, EXISTS. A file replaces a file, a directory an empty directory."""
        ...

    def remove_file(self, name: str) -> StepOutcome:
        """Remove a file. DONE, MISSING."""
        ...

    def remove_directory(self, name: str) -> StepOutcome:
        """Remove a directory. DONE, MISSING, EXISTS (it is not empty)."""
        ...

    def sync_directory(self, name: str) -> StepOutcome:
        """Make the directory's entries survive a power cut, if the file system can do that.

        DONE, or MISSING; if there was nothing to do, MISSING may go unnoticed.
        """
        ...

    def names(self, name: str) -> Iterator[str]:
        """Yield all names present throughout, and any part of those that come or go meanwhile. Raises MissingError."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """Read bytes of a file, fewer at its end. Raises MissingError."""
        ...

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises MissingError."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free bytes available without privileges, or None if unknown."""
        ...
