"""The destination of an export in any format: a directory, its files, and their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from replicator.cli.api.mail_stream import Mail

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600
"""Modes of what is made: mail is for its owner alone."""


_CRLF: Final = re.compile(rb"(?<!\r)\r\n")


class DestinationError(Exception):
    """A directory that cannot be used. The text names it and says why."""


class FolderWriter(Protocol):
    """A folder that is being written."""

    @property
    def path(self) -> Path:
        """The folder's file or directory."""
        ...

    def write(self, mail: Mail) -> None:
        """Write a mail. If that fails, nothing of it is left. Raises MailUnreadableError, OSError."""
        ...


class MailWriter(Protocol):
    """A directory into which folders are written, one after the other.

    `notes` tell what the format could not keep of the folders that are complete, for people.
    """

    notes: list[str]

    def folder(self, name: str, uidvalidity: int, uidnext: int) -> AbstractContextManager[FolderWriter]:
        """Begin a folder, which is complete on leaving the block. Raises OSError.

        `uidnext`: above all UIDs that clients may know, also of mail that is expunged or cannot be read.
        """
        ...


def fresh_directory(path: Path) -> None:
    """Make a directory that is there and empty. Raises DestinationError."""
    try:
        path.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        is_empty = next(path.iterdir(), None) is None
    except OSError as error:
        raise DestinationError(f"{path}: {error.strerror}") from error
    if not is_empty:
        raise DestinationError(f"{path}: the directory is not empty; name a new one")


def create(path: Path) -> BinaryIO:
    """Create a file for writing. Raises FileExistsError, OSError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE), "w+b")


def not_taken(path: Path) -> Path:
    """Return the path, or one like it if that is taken: two folders may have names that a format cannot tell apart."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}_{number}")
    return found


def with_lf(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces with LF for each CRLF, wherever pieces begin. CR CR LF stays: CR LF means something else."""
    held = b""
    for piece in pieces:
        whole = held + piece
        held = b"\r\r" if whole.endswith(b"\r\r") else b"\r" if whole.endswith(b"\r") else b""
        yield _CRLF.sub(b"\n", whole.removesuffix(held))
    if held:
        yield held
