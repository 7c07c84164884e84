"""Changes to small files of lines that people edit, too, and that running nodes read: passwd-files, tokens.

An edit is atomic (temporary file, fsync, rename). Edits exclude each other by a lock on the directory, so that a crash
leaves no lock behind.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

Lines = list[bytes]


def edit_lines(
    path: Path, read: Callable[[Path], Lines], change: Callable[[Lines], Lines], *, create: bool = False
) -> None:
    """Replace the lines of a file, line ends included, by the result of `change`. Blocks.

    With `create`, a missing file counts as empty, and the new one is readable by its owner only: who runs this, or, if
    that is root, the owner of the directory. Raises OSError, and the errors of `read` and `change`.
    """
    path = path.resolve()  # replace the target of a symbolic link, not the link
    with _locked(path.parent):
        try:
            lines = read(path)
        except FileNotFoundError:
            if not create:
                raise
            lines = []
        _replace(path, b"".join(change(lines)))


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Replace a file, or create it for its owner alone, by these lines, line ends included. Blocks. Raises OSError."""
    with _locked(path.parent):
        _replace(path, b"".join(lines))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)  # the rename must be on disk before the caller reports success
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    """Replace the file by a new one with the same owner and mode; what root creates gets the directory's owner."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - it is open already
            old = path.stat() if path.exists() else None
            if old is not None:
                os.fchmod(descriptor, old.st_mode & 0o7777)
            owned = old or (path.parent.stat() if os.geteuid() == 0 else None)  # else the node could not read it
            if owned is not None and (owned.st_uid, owned.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, owned.st_uid, owned.st_gid)
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
