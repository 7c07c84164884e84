"""The head of a mailbox's or a tree's history, and its row in the database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import cast

import msgpack

from protocol.values import UID_MAX, Dot
from replicator.store.db.message_rows import DamagedRowError, unpacked_context
from resync import row as rows
from resync.entry import ID_BYTES


@dataclass(slots=True)
class Chain:
    """What a node shows of one mailbox, but for its rows. A tree has UIDVALIDITY 0 and no messages.

    `uidvalidity` is that of the first entry, which tells a mailbox from a tree. The one that clients see is the
    folder's in the tree and what merges have `risen` it by.
    """

    id: bytes
    user: str
    uidvalidity: int
    uidnext: int = 1
    highestmodseq: int = 0
    head: Dot | None = None
    context: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    unseen: int = 0
    size_bytes: int = 0
    fingerprint: int = 0
    risen: int = 0
    keeps_expunged: bool | None = field(default=None, compare=False)
    """Whether `expunged` may have something of it; None: nobody has looked. The writer's, and not on disk."""
    time: int = field(default=0, compare=False)
    """Of the head's stamp, as far as this run of the node has seen it come. The writer's, and not on disk."""

    def digest(self) -> bytes:
        """16 bytes, equal at two nodes if and only if they show the same state."""
        values = (
            self.uidvalidity == 0, self.uidnext, self.highestmodseq, self.head, sorted(self.context.items()),
            self.messages, rows.to_bytes(self.fingerprint), self.risen,
        )  # fmt: skip
        return rows.to_bytes(rows.fingerprint(values))

    def has_seen(self, dot: Dot) -> bool:
        """Whether the entry is part of this state's history."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def advance(self, dot: Dot, modseq: int, time: int) -> None:
        """The entry becomes the head."""
        self.head, self.highestmodseq, self.time = dot, modseq, time
        self.context[dot.origin] = dot.seq


_COLUMNS = (
    "id, user, uidvalidity, uidnext, highestmodseq, head_origin, head_seq, context,"
    " messages, unseen, size_bytes, fingerprint, risen"
)
_NAME = "a mailbox's row"
_NUMBER_MAX = 1 << 62  # far above what any counter reaches, and room below SQLite's largest to count on
SELECT = f"SELECT {_COLUMNS} FROM chain"
_OTHERS = (("recent", "mailbox"), ("by_uid", "mailbox"), ("checkpoint", "chain"), ("unproven", "chain"))
_KNOWN = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE {key} = ?1" for table, key in _OTHERS)
_WAS_HERE = f"SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM chain WHERE id = ?1) AND EXISTS ({_KNOWN})"
# The first of a table may have very many rows each: from one to the next is a step in its key.
_STEPS = """
SELECT id FROM (
    WITH RECURSIVE step(id) AS (
        SELECT MIN({key}) FROM {table} WHERE {key} > ?1
        UNION ALL SELECT (SELECT MIN({key}) FROM {table} WHERE {key} > step.id) FROM step WHERE step.id IS NOT NULL
        LIMIT ?2
    )
    SELECT id FROM step WHERE id IS NOT NULL
)"""
_IDS = " UNION ".join(_STEPS.format(table=table, key=key) for table, key in (("chain", "id"), *_OTHERS))
_GONE = (
    "is gone, and nothing can be numbered without it; run `replicator check --repair` at this node; where that does not"
    " bring it back, end the node and run `replicator rebuild --from-peers`"
)


def load(connection: sqlite3.Connection, chain_id: bytes) -> Chain | None:
    """The chain, if there is one here."""
    row = connection.execute(f"{SELECT} WHERE id = ?", (chain_id,)).fetchone()
    return None if row is None else from_row(row)


def load_known(connection: sqlite3.Connection, chain_id: bytes) -> Chain | None:
    """As `load`, for whoever takes a mailbox that is not here for a new one. Raises DamagedRowError if it is none."""
    chain = load(connection, chain_id)
    if chain is None:
        check_new(connection, chain_id)
    return chain


def ids(connection: sqlite3.Connection, after: object, limit: int) -> list[bytes]:
    """Of all mailboxes and trees, also such as have lost their rows: a slice, by id. `after` may be of any type."""
    return [chain_id for (chain_id,) in connection.execute(f"{_IDS} ORDER BY id LIMIT ?2", (after, limit))]


def is_lost(connection: sqlite3.Connection, chain_id: bytes) -> bool:
    """Whether a chain had a row, and has none. Its UIDs were given out; it must not begin with 1 again."""
    return connection.execute(_WAS_HERE, (chain_id,)).fetchone() is not None


def check_new(connection: sqlite3.Connection, chain_id: bytes) -> None:
    """Raises DamagedRowError for a chain that has no row and had one."""
    if is_lost(connection, chain_id):
        found = connection.execute("SELECT user, name FROM folder WHERE mailbox_id = ?", (chain_id,)).fetchone()
        name = "the folder {1!r} of {0}".format(*found) if found else f"the mailbox or tree {chain_id.hex()}"
        raise DamagedRowError(f"the row of {name}", _GONE)


def from_row(row: tuple[object, ...]) -> Chain:
    """A chain from a row that `SELECT` gave. Raises DamagedRowError."""
    chain_id, user, uidvalidity, uidnext, highestmodseq, origin, seq, context, messages, unseen, size, total, risen = (
        row
    )
    if not (isinstance(chain_id, bytes) and len(chain_id) == ID_BYTES and isinstance(user, str)):
        raise DamagedRowError(_NAME)
    if not (isinstance(total, bytes) and len(total) == rows.FINGERPRINT_BYTES):
        raise DamagedRowError(_NAME)
    chain = Chain(
        chain_id,
        user,
        cast("int", uidvalidity),
        cast("int", uidnext),
        cast("int", highestmodseq),
        None if origin is None and seq is None else Dot(cast("str", origin), cast("int", seq)),
        unpacked_context(context, _NAME),
        cast("int", messages),
        cast("int", unseen),
        cast("int", size),
        int.from_bytes(total),
        cast("int", risen),
    )
    if not _can_be(chain):
        raise DamagedRowError(_NAME)
    return chain


def _can_be(chain: Chain) -> bool:
    """Whether the numbers are such as a chain can have: nothing is numbered from others."""
    counted = (chain.highestmodseq, chain.messages, chain.unseen, chain.size_bytes)
    of_uids = (chain.uidvalidity, chain.uidnext, chain.risen)
    if not all(_is_within(number, 0, _NUMBER_MAX) for number in counted):
        return False
    if not all(_is_within(number, 0, UID_MAX) for number in of_uids):
        return False
    return chain.head is None or ("." in str(chain.head.origin) and _is_within(chain.head.seq, 1, _NUMBER_MAX))


def _is_within(value: object, low: int, high: int) -> bool:
    """Columns may hold anything."""
    return isinstance(value, int) and low <= value <= high


def save(connection: sqlite3.Connection, chain: Chain) -> None:
    """Write the chain's row."""
    origin, seq = chain.head or (None, None)
    connection.execute(
        f"INSERT OR REPLACE INTO chain ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            chain.id, chain.user, chain.uidvalidity, chain.uidnext, chain.highestmodseq, origin, seq,
            msgpack.packb(chain.context), chain.messages, chain.unseen, chain.size_bytes,
            rows.to_bytes(chain.fingerprint), chain.risen,
        ),
    )  # fmt: skip
