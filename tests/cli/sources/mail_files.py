"""Files of mail to import: Maildirs and mboxes."""

from __future__ import annotations

import os
from pathlib import Path

FROM = b"From ann@example.org Thu Nov 17 00:49:30 1994\n"


def make_maildir(path: Path) -> Path:
    for part in ("cur", "new", "tmp"):
        (path / part).mkdir(parents=True)
    return path


def put(directory: Path, name: str, text: bytes, mtime_s: int = 1000) -> Path:
    file = directory / name
    file.write_bytes(text)
    os.utime(file, (mtime_s, mtime_s))
    return file
