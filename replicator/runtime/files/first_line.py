"""The first line of a file that holds a secret."""

from __future__ import annotations

from pathlib import Path

BYTES_MAX = 4096


def first_line(file: Path) -> bytes:
    """Return the first line without its end; of a longer one, the beginning. Raises OSError."""
    with file.open("rb") as stream:
        return stream.read(BYTES_MAX).split(b"\n", 1)[0].rstrip(b"\r")
