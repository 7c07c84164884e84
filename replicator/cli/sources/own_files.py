"""Files of a Maildir, read with more rights than its owner has: only files that are the owner's own.

Users who can write to their Maildirs could put a link to somebody else's file there, and have it imported as mail.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from protocol.units import MIB

FILE_BYTES_MAX: Final = 256 * MIB
"""Octets of a list or log: the UIDs of some million messages."""


def check_links(path: Path) -> None:
    """Check that nobody else than who runs this, root and the owner of what is there has made a link on the way.

    Raises OSError for a link of others: its maker might lead the import to somebody else's mail.
    """
    trusted = {0, os.geteuid(), path.stat().st_uid}
    at, rest = Path("/"), [*reversed(path.absolute().parts[1:])]
    while rest:
        part = rest.pop()
        here = at.parent if part == os.pardir else at / part
        if not here.is_symlink():
            at = here
            continue
        if here.lstat().st_uid not in trusted:
            raise OSError(errno.EPERM, "a link of another user; name what it leads to", str(here))
        target = here.readlink()
        at = Path("/") if target.is_absolute() else at
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)


class OwnFiles:
    """Files that belong to the owner of a directory."""

    def __init__(self, root: Path) -> None:
        self._owner = root.stat().st_uid

    def open(self, path: Path | str) -> BinaryIO:
        """Open a file for reading. Raises OSError, also for a link and for what is no file, or somebody else's."""
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            reason = "no file"
        elif status.st_uid != self._owner:
            reason = "belongs to another user than the Maildir"
        else:
            return os.fdopen(number, "rb")
        os.close(number)
        raise OSError(errno.EPERM, reason, str(path))

    def read(self, path: Path | str, most_bytes: int = FILE_BYTES_MAX) -> bytes:
        """Return a file's content. Raises OSError as `open`, and for a larger file."""
        with self.open(path) as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise OSError(errno.EFBIG, f"larger than {most_bytes // MIB} MiB", str(path))
        return content

    def read_if_there(self, path: Path) -> bytes | None:
        """Return a file's content; None if there is none. Raises OSError as `read`."""
        try:
            return self.read(path)
        except FileNotFoundError:
            return None
