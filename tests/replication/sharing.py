"""Cache pure work that the nodes of a cluster repeat: parsing frames and rows of the database.

Most frames cross more than one link, and most rows are at all nodes and are read again and again. The first of equal
inputs goes to the program's own function, whose result is immutable. Inputs that are refused are not cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from protocol import stream_codec
from protocol.parser import parse
from replicator.store.db.rows.message_rows import row_from

FRAMES = 2_000
ROWS = 20_000
"""Numbers of results in the caches, which keep the latest ones."""


@contextmanager
def shared() -> Iterator[None]:
    """Cache the work within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_codec, "parse", lru_cache(FRAMES)(parse))
        patch.setattr("replicator.store.db.queries.message_queries.row_from", lru_cache(ROWS)(row_from))
        yield
