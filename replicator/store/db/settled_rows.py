"""What nodes have said that they have settled, as it lies on disk: the last statement of each (design section 7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress

from msgpack import packb, unpackb

from protocol.commands import Settled
from protocol.values import Dot


def load(connection: sqlite3.Connection) -> list[Settled]:
    """The statements of all nodes, by SID. One that cannot be read is left out: its node says it again."""
    found = []
    for sid, sequence, context in connection.execute("SELECT sid, sequence, context FROM settled ORDER BY sid"):
        with suppress(ValueError, TypeError):
            found.append(Settled(sid, int(sequence), tuple(Dot(str(name), int(seq)) for name, seq in unpackb(context))))
    return found


def save(connection: sqlite3.Connection, statements: Iterable[Settled]) -> None:
    """Write statements in place of those before."""
    connection.executemany(
        "INSERT OR REPLACE INTO settled (sid, sequence, context) VALUES (?,?,?)",
        ((said.sid, said.sequence, packb(said.context)) for said in statements),
    )
