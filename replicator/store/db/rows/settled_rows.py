"""The last statement of each node about what it has settled, as stored on disk (design section 7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress

from msgpack import packb, unpackb

from protocol.commands import Settled
from protocol.values import Dot


def load(connection: sqlite3.Connection) -> list[Settled]:
    """Return the statements of all nodes, by SID. Unreadable ones are left out: their nodes repeat them."""
    found = []
    for sid, sequence, context in connection.execute("SELECT sid, sequence, context FROM settled ORDER BY sid"):
        with suppress(ValueError, TypeError):
            found.append(Settled(sid, int(sequence), tuple(Dot(str(name), int(seq)) for name, seq in unpackb(context))))
    return found


def save(connection: sqlite3.Connection, statements: Iterable[Settled]) -> None:
    """Write statements in place of the nodes' earlier ones."""
    connection.executemany(
        "INSERT OR REPLACE INTO settled (sid, sequence, context) VALUES (?,?,?)",
        ((said.sid, said.sequence, packb(said.context)) for said in statements),
    )
