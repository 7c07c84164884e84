"""The head of a mailbox's or tree's history, and its row in the database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import msgpack

from protocol.values import UID_MAX, Dot
from replicator.store.db.rows.message_rows import DamagedRowError, unpacked_context
from resync import row as rows
from resync.entry import DIGEST_BYTES, ID_BYTES, anchor


class Usage(NamedTuple):
    """Contents of mailboxes: messages, and the octets of their bodies. Each copy of a message counts."""

    messages: int = 0
    size_bytes: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage(self.messages + other.messages, self.size_bytes + other.size_bytes)

    def minus(self, other: Usage) -> Usage:
        """Return the difference, in which numbers may be negative."""
        return Usage(self.messages - other.messages, self.size_bytes - other.size_bytes)


@dataclass(slots=True)
class Chain:
    """The state of one mailbox or tree as this node shows it, without its rows.

    A tree has UIDVALIDITY 0 and no messages. `uidvalidity` comes from the first entry and tells a mailbox from a tree.
    The UIDVALIDITY that clients see is the folder's in the tree plus `risen`, the amount by which merges have raised
    it.
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
    history: bytes = b""
    """The hash of the head's history, which its entry names (`Entry.history`); empty without a head."""
    keeps_expunged: bool | None = field(default=None, compare=False)
    """True if the table `expunged` may have rows of this mailbox, None if not yet checked.

    The writer's, not on disk.
    """
    keeps_waiting: bool | None = field(default=None, compare=False)
    """True if entries of this chain may wait or be abandoned, None if not yet checked.

    The writer's, not on disk.
    """
    tallied: tuple[int, int] | None = field(default=None, compare=False)
    """Its part of the tally after the last commit that changed it (`tally.Shown`). The writer's, not on disk."""
    time: int = field(default=0, compare=False)
    """Time of the head's stamp, as far as this run of the node has seen it. The writer's, not on disk."""

    @property
    def usage(self) -> Usage:
        """Contents of the mailbox; nothing if this is a tree."""
        return Usage(self.messages, self.size_bytes)

    def digest(self) -> bytes:
        """Return 16 bytes that are equal at two nodes if and only if both show the same state of one history.

        Table `tally` has the sum of all: whoever changes what is digested has it counted anew by an upgrade.
        """
        values = (
            self.uidvalidity == 0, self.uidnext, self.highestmodseq, self.head, sorted(self.context.items()),
            self.messages, rows.to_bytes(self.fingerprint), self.risen, self.history,
        )  # fmt: skip
        return rows.to_bytes(rows.fingerprint(values))

    def has_seen(self, dot: Dot) -> bool:
        """Return True if the entry is part of this state's history."""
        return self.context.get(dot.origin, 0) >= dot.seq

    def advance(self, dot: Dot, modseq: int, time: int, history: bytes) -> None:
        """Make the entry the head."""
        self.head, self.highestmodseq, self.time, self.history = dot, modseq, time, history
        self.context[dot.origin] = dot.seq


_STATE = (
    "uidvalidity, uidnext, highestmodseq, head_origin, head_seq, context, messages, unseen, size_bytes, fingerprint,"
    " risen, history"
)
_COLUMNS = f"id, user, {_STATE}"
_UPDATE = f"UPDATE chain SET ({_STATE}) = ({','.join('?' * len(_STATE.split(',')))}) WHERE id = ? AND user = ?"
_REPLACE = f"INSERT OR REPLACE INTO chain ({_COLUMNS}) VALUES ({','.join('?' * len(_COLUMNS.split(',')))})"
_NAME = "a mailbox's row"
_NUMBER_MAX = 1 << 62  # far above what any counter reaches, and well below SQLite's largest integer
SELECT = f"SELECT {_COLUMNS} FROM chain"
_OTHERS = (("recent", "mailbox"), ("by_uid", "mailbox"), ("checkpoint", "chain"), ("unproven", "chain"))
_KNOWN = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE {key} = ?1" for table, key in _OTHERS)
_WAS_HERE = f"SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM chain WHERE id = ?1) AND EXISTS ({_KNOWN})"
# A table may have very many rows for each id, so each recursive step jumps to the next id by index.
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
_KEEPS_WAITING = (  # abandoned entries by the partial index
    "SELECT 1 FROM waiting WHERE chain = ?1 UNION ALL SELECT 1 FROM log WHERE chain = ?1 AND applied = 2 LIMIT 1"
)
_GONE = (
    "is missing, and this node cannot number changes without it; run `replicator check --repair` at this node;"
    " if that does not bring it back, stop the node and run `replicator rebuild --from-peers`"
)


def load(connection: sqlite3.Connection, chain_id: bytes) -> Chain | None:
    """Return the chain, or None if this node has none of that id."""
    row = connection.execute(f"{SELECT} WHERE id = ?", (chain_id,)).fetchone()
    return None if row is None else from_row(row)


def keeps_waiting(connection: sqlite3.Connection, chain_id: bytes) -> bool:
    """Return True if entries of the chain wait or are abandoned."""
    return connection.execute(_KEEPS_WAITING, (chain_id,)).fetchone() is not None


def load_known(connection: sqlite3.Connection, chain_id: bytes) -> Chain | None:
    """Load a chain whose absence the caller takes to mean a new mailbox. Raises DamagedRowError if its row was lost."""
    chain = load(connection, chain_id)
    if chain is None:
        check_new(connection, chain_id)
    return chain


def usage(connection: sqlite3.Connection, user: str) -> Usage:
    """Return what all of the user's mailboxes hold, those of deleted folders included."""
    query = "SELECT COALESCE(SUM(messages), 0), COALESCE(SUM(size_bytes), 0) FROM chain WHERE user = ?"
    return Usage(*connection.execute(query, (user,)).fetchone())


def ids(connection: sqlite3.Connection, after: object, limit: int) -> list[bytes]:
    """Return up to `limit` ids of mailboxes and trees above `after`, in order, including chains whose row is lost.

    `after` may be of any SQLite type.
    """
    return [chain_id for (chain_id,) in connection.execute(f"{_IDS} ORDER BY id LIMIT ?2", (after, limit))]


def is_lost(connection: sqlite3.Connection, chain_id: bytes) -> bool:
    """Return True if the chain once had a row but has none now. Its UIDs were given out: it must not restart at 1."""
    return connection.execute(_WAS_HERE, (chain_id,)).fetchone() is not None


def check_new(connection: sqlite3.Connection, chain_id: bytes) -> None:
    """Raise DamagedRowError if the chain has no row but once had one."""
    if is_lost(connection, chain_id):
        found = connection.execute("SELECT user, name FROM folder WHERE mailbox_id = ?", (chain_id,)).fetchone()
        name = "the folder {1!r} of {0}".format(*found) if found else f"the mailbox or tree {chain_id.hex()}"
        raise DamagedRowError(f"the row of {name}", _GONE)


def from_row(row: tuple[object, ...]) -> Chain:
    """Build a chain from a row selected by `SELECT`. Raises DamagedRowError."""
    (
        chain_id, user, uidvalidity, uidnext, highestmodseq, origin, seq, context,
        messages, unseen, size, total, risen, history,
    ) = row  # fmt: skip
    if not (isinstance(chain_id, bytes) and len(chain_id) == ID_BYTES and isinstance(user, str)):
        raise DamagedRowError(_NAME)
    if not (isinstance(total, bytes) and len(total) == rows.FINGERPRINT_BYTES):
        raise DamagedRowError(_NAME)
    if not (isinstance(history, bytes) and len(history) in {0, DIGEST_BYTES}):
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
        history,
    )
    if not _can_be(chain):
        raise DamagedRowError(_NAME)
    if chain.head is not None and not history:  # an earlier version has written the row
        chain.history = anchor(chain.head)
    return chain


def _can_be(chain: Chain) -> bool:
    """Return True if all numbers are in a chain's possible range; otherwise nothing must be numbered from them."""
    counted = (chain.highestmodseq, chain.messages, chain.unseen, chain.size_bytes)
    of_uids = (chain.uidvalidity, chain.uidnext, chain.risen)
    of_head = () if chain.head is None else (chain.head.seq,)
    if set(map(type, (*counted, *of_uids, *of_head))) != {int}:  # SQLite columns may hold any type
        return False
    if min(counted) < 0 or max(counted) > _NUMBER_MAX or min(of_uids) < 0 or max(of_uids) > UID_MAX:
        return False
    return chain.head is None or ("." in str(chain.head.origin) and 1 <= chain.head.seq <= _NUMBER_MAX)


def save(connection: sqlite3.Connection, chain: Chain) -> None:
    """Write the chain's row. Mostly it is there, and an update leaves the index of users alone."""
    origin, seq = chain.head or (None, None)
    state = (
        chain.uidvalidity, chain.uidnext, chain.highestmodseq, origin, seq, msgpack.packb(chain.context),
        chain.messages, chain.unseen, chain.size_bytes, rows.to_bytes(chain.fingerprint), chain.risen, chain.history,
    )  # fmt: skip
    if connection.execute(_UPDATE, (*state, chain.id, chain.user)).rowcount == 0:
        connection.execute(_REPLACE, (chain.id, chain.user, *state))
