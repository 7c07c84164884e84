"""What nodes have said that they have settled, as it lies on disk: the last statement of each (design section 7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgpack

from protocol.commands import Settled
from protocol.values import Dot


def load(connection: sqlite3.Connection) -> list[Settled]:
    """The statements of all nodes, by SID."""
    rows = connection.execute("SELECT sid, sequence, context FROM settled ORDER BY sid")
    return [
        Settled(sid, sequence, tuple(Dot(origin, seq) for origin, seq in msgpack.unpackb(context)))
        for sid, sequence, context in rows
    ]


def save(connection: sqlite3.Connection, statements: Iterable[Settled]) -> None:
    """Write statements in place of those before."""
    connection.executemany(
        "INSERT OR REPLACE INTO settled (sid, sequence, context) VALUES (?,?,?)",
        ((said.sid, said.sequence, msgpack.packb(said.context)) for said in statements),
    )
