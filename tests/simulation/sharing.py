"""Pure work that the nodes of a cluster do alike is done once: what frames and rows of the database mean.

Most frames cross more than one link, and most rows are at all nodes and are read again and again. The first of equal
ones goes to the program's own function, and what comes of it cannot change. One that is refused is looked at each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from protocol import codec
from protocol.parser import parse
from replicator.store.db import queries
from replicator.store.db.message_rows import row_from

FRAMES = 2_000
ROWS = 20_000
"""So many are remembered, the latest ones."""


@contextmanager
def shared() -> Iterator[None]:
    """For the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "parse", lru_cache(FRAMES)(parse))
        patch.setattr(queries, "row_from", lru_cache(ROWS)(row_from))
        yield
