"""Frames that several nodes receive are parsed once: most cross more than one link, and parsing is pure.

The first of equal frames goes to the program's parser, and what comes of it cannot change. A frame that is refused is
parsed each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from protocol import codec

FRAMES = 2_000
"""So many are remembered, the latest ones."""


@contextmanager
def parsed_once() -> Iterator[None]:
    """For the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "parse", lru_cache(FRAMES)(codec.parse))
        yield
