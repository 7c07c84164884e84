"""One moment of the database, for queries that belong together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Let all queries in the block see the database as it is at the first of them."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")
