"""Single values, formatted as a configuration file has them: the reverse of `values`."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from replicator.config import values
from replicator.runtime.sizes import SIZE_UNITS_BYTES


def quoted(text: str) -> str:
    """Return the text as a string of TOML."""
    # JSON's escapes are a subset of those in TOML's basic strings, but TOML also requires DEL to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def path_text(path: Path, directory: Path) -> str:
    """Return a path, relative to `directory` if it is within."""
    return quoted(str(path.relative_to(directory) if path.is_relative_to(directory) else path))


def url_text(url: str, directory: Path) -> str:
    """Return a URL; that of a directory within `directory` becomes relative."""
    if not url.startswith("file:///"):
        return quoted(url)
    path = Path(unquote(urlsplit(url).path))
    return quoted(f"file:{path.relative_to(directory) if path.is_relative_to(directory) else path}")


def duration_text(seconds: float) -> str:
    """Return seconds in the largest unit that gives a whole number, or else in milliseconds."""
    microseconds = round(seconds * 1_000_000)
    for unit, unit_s in reversed(values.DURATION_UNITS_S.items()):
        count, rest = divmod(microseconds, round(unit_s * 1_000_000))
        if rest == 0:
            return quoted(f"{count}{unit}")
    return quoted(f"{microseconds / 1000:.3f}ms")


def size_text(size_bytes: int) -> str:
    """Return bytes in the largest unit that gives a whole number."""
    unit, unit_bytes = next(
        (unit, unit_bytes) for unit, unit_bytes in reversed(SIZE_UNITS_BYTES.items()) if size_bytes % unit_bytes == 0
    )
    return quoted(f"{size_bytes // unit_bytes}{unit}")
