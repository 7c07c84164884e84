"""Sizes as people write them, such as `64KiB`, and their bounds: in the configuration, and in the passwd-file."""

from __future__ import annotations

import re

from protocol.units import GIB, KIB, MIB

SIZE = re.compile(r"([0-9]{1,18})(B|KiB|MiB|GiB)")
SIZE_UNITS_BYTES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
SIZE_MAX_BYTES = 2**60
"""SQLite's and Python's file offsets are signed 64-bit numbers; this leaves room for sums."""
MESSAGES_MAX = 10**12
"""Limit of the messages of one user: more than any disk holds."""


def parse_size(text: str) -> int | None:
    """Return the size in bytes, which may be above SIZE_MAX_BYTES; None if this is no size."""
    match = SIZE.fullmatch(text)
    return int(match[1]) * SIZE_UNITS_BYTES[match[2]] if match else None
