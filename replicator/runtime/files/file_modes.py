"""Modes of files and directories: what a node creates is for its user alone, 0600 and 0700.

One umask, set when the process starts, holds for everything that any library here creates: SQLite's files, attachments,
checkpoints, inventories, and what child processes write. What may be shared is the exception: a directory that is
itself open to its group (mode g+w) was made so by an operator for nodes of several users, and then the umask leaves the
group its rights. Everything that a node does not share is therefore created with an explicit mode, or lies in a
directory that is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

OWNER_ONLY = 0o077
"""Umask: no rights for the group and for others."""
OWNER_AND_GROUP = 0o007
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700

_ENTRIES_MAX = 10_000  # looked at: a directory of a node has fewer


def umask_for(shareable: Iterable[Path]) -> int:
    """Return the umask of a process that writes to these directories, some of which a group may share."""
    return OWNER_AND_GROUP if any(_is_shared(directory) for directory in shareable) else OWNER_ONLY


def create_private(file: Path) -> None:
    """Create an empty file for its owner alone; leave an existing one as it is. Raises OSError."""
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))


def exposed_directory(directory: Path, *, may_be_shared: bool = False) -> str | None:
    """Return a warning if others than the owner can read anything in the directory, else None.

    A directory that its group shares (`may_be_shared`, mode g+w) must be closed to everybody else.
    """
    with suppress(OSError):  # it is not there yet, or cannot be read: opening it says so
        mode = directory.stat().st_mode
        is_shared = may_be_shared and _is_shared(directory)
        others = stat.S_IRWXO if is_shared else stat.S_IRWXO | stat.S_IRWXG
        if mode & others & 0o555 and (names := sorted(_open_entries(directory, others & 0o555))):
            who, rights = ("everybody", "o=") if is_shared else ("others", "go=")
            return (
                f"{directory}: {who} on this machine can read what is in it, such as {names[0]} (mode"
                f" {stat.S_IMODE(mode):04o}); close it by `chmod -R {rights} {directory}`"
            )
    return None


def exposed_file(file: Path) -> str | None:
    """Return a warning if everybody can read the file, else None. That its group can is taken for intended."""
    with suppress(OSError):
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & stat.S_IROTH:
            return f"{file}: everybody on this machine can read it (mode {mode:04o}); close it by `chmod o= {file}`"
    return None


def _is_shared(directory: Path) -> bool:
    with suppress(OSError):
        return bool(directory.stat().st_mode & stat.S_IWGRP)
    return False


def _open_entries(directory: Path, bits: int) -> Iterator[str]:
    """Yield names of files and directories that have one of these bits. Links and sockets are not looked at."""
    with os.scandir(directory) as entries:
        for entry in islice(entries, _ENTRIES_MAX):
            is_looked_at = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
            if is_looked_at and entry.stat(follow_symlinks=False).st_mode & bits:
                yield entry.name
