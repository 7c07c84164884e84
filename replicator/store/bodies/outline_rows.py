"""Outlines of message bodies in the database: what clients ask for most, made once for each body (design section 6).

An outline is derived data, and opaque here: what makes it and reads it also counts its versions. Each body that was
looked at has a row, an empty one if its outline is too large or cannot be made. Bodies are looked at in the order of
their ids, so those above the highest row are still to come. A body's row leaves with the body, by a trigger of table
`content`: so if the highest body leaves and a new one gets its id, that one is looked at, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress

import zstandard

from protocol.units import KIB
from replicator.store.bodies.body_lists import ListedBody
from replicator.store.bodies.body_rows import COMPRESSION_LEVEL, read_body

OUTLINE_MAX_BYTES = 16 * KIB
"""Largest outline that is kept: ten times what mail has, and few enough octets to read some hundred at once."""

LOOKED_UP_AT_ONCE = 250
"""Bodies in one query, far below SQLite's limit of parameters. It takes a third of the time of a query for each."""


def outlines(connection: sqlite3.Connection, hashes: Iterable[bytes], version: int) -> dict[bytes, bytes]:
    """Return the outlines of this version that these bodies have, by their hash. Damaged ones are left out."""
    query = (  # by the hashes: the optimiser might begin with all outlines
        "SELECT c.hash, o.packed FROM content c CROSS JOIN outline o ON o.id = c.id WHERE o.version = ? AND c.hash IN "
    )
    unpack, wanted, found = zstandard.ZstdDecompressor().decompress, [*hashes], dict[bytes, bytes]()
    for start in range(0, len(wanted), LOOKED_UP_AT_ONCE):
        some = wanted[start : start + LOOKED_UP_AT_ONCE]
        rows = connection.execute(f"{query} ({','.join('?' * len(some))})", (version, *some))
        for content_hash, packed in rows:
            if isinstance(packed, bytes) and packed:
                with suppress(zstandard.ZstdError):
                    found[content_hash] = unpack(packed, max_output_size=OUTLINE_MAX_BYTES)
    return found


def unoutlined(connection: sqlite3.Connection, version: int, bodies: int, size_bytes: int) -> list[ListedBody]:
    """Return bodies to be outlined, within these limits, but at least one if there is any: new ones first."""
    new = "SELECT hash, length(body) FROM content WHERE id > (SELECT COALESCE(MAX(id), 0) FROM outline) ORDER BY id"
    old = (
        "SELECT c.hash, length(c.body) FROM outline o CROSS JOIN content c ON c.id = o.id WHERE o.version < ?"
        " ORDER BY o.version, o.id"
    )
    rows = (
        connection.execute(f"{new} LIMIT ?", (bodies,)).fetchall()
        or connection.execute(f"{old} LIMIT ?", (version, bodies)).fetchall()
    )
    found: list[ListedBody] = []
    for content_hash, length in rows:
        if found and size_bytes < length:
            break
        found.append(ListedBody(content_hash, read_body(connection, content_hash)))
        size_bytes -= length
    return found


def new_count(connection: sqlite3.Connection) -> int:
    """Return the number of bodies that nobody has looked at yet; those that have left meanwhile may count. Cheap."""
    query = "SELECT (SELECT COALESCE(MAX(id), 0) FROM content) - (SELECT COALESCE(MAX(id), 0) FROM outline)"
    count: int = connection.execute(query).fetchone()[0]
    return max(0, count)


def old_count(connection: sqlite3.Connection, version: int) -> int:
    """Return the number of bodies whose outline is of an earlier version."""
    count: int = connection.execute("SELECT COUNT(*) FROM outline WHERE version < ?", (version,)).fetchone()[0]
    return count


def write_outlines(connection: sqlite3.Connection, made: Mapping[bytes, bytes], version: int) -> None:
    """Write rows of bodies that are still here. An empty outline, or one that is too large, leaves an empty row."""
    compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress
    connection.executemany(
        "INSERT OR REPLACE INTO outline (id, version, packed) SELECT id, ?, ? FROM content WHERE hash = ?",
        (
            (version, compress(octets) if 0 < len(octets) <= OUTLINE_MAX_BYTES else b"", content_hash)
            for content_hash, octets in made.items()
        ),
    )
