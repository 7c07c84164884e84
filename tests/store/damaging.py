"""Damage to a database that no process has open: by SQL statements, or by pages, as a faulty disk causes it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from replicator.store.db import schema

ZEROS = bytes(schema.PAGE_BYTES)
_LEAVES = {10, 13}  # the page types of leaves, of indexes and tables (https://sqlite.org/fileformat2.html section 1.6)


def damage(path: Path, *statements: str) -> None:
    """Run the statements on a new connection. Each must change something."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount


def leaves_of(path: Path, tree: str) -> list[int]:
    """Return the leaf pages of a table or index, in order."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        root: int = connection.execute(query, (tree,)).fetchone()[0]
    data = path.read_bytes()
    return list(_leaves(data, root))


def _leaves(data: bytes, page: int) -> list[int]:
    start = (page - 1) * schema.PAGE_BYTES
    if data[start] in _LEAVES:
        return [page]
    cells = int.from_bytes(data[start + 3 : start + 5])
    pointers = (int.from_bytes(data[start + 12 + 2 * cell :][:2]) for cell in range(cells))
    children = [int.from_bytes(data[start + pointer :][:4]) for pointer in pointers]
    children.append(int.from_bytes(data[start + 8 : start + 12]))
    return [leaf for child in children for leaf in _leaves(data, child)]


def overwrite(path: Path, page: int, content: bytes = ZEROS) -> None:
    """Overwrite the beginning of a page."""
    with path.open("r+b") as file:
        file.seek((page - 1) * schema.PAGE_BYTES)
        file.write(content)


def zero_middle(path: Path, tree: str) -> None:
    """Overwrite a leaf page in the middle of a table or index with zeros."""
    leaves = leaves_of(path, tree)
    assert len(leaves) > 2, leaves
    overwrite(path, leaves[len(leaves) // 2])


def random_bytes(size: int, seed: int = 0) -> bytes:
    """Return bytes that are certainly no SQLite database."""
    return bytes((seed + 31 * number * number + number // 7) % 251 for number in range(size)) or os.urandom(size)
