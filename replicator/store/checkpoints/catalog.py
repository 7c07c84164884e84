"""The catalog of this node's checkpoints and manifests in the object store (design section 6).

A round saves the heads that are not saved, then publishes a manifest. A checkpoint's row says in which round it was
saved; the manifest of a round lists, for each chain, the last checkpoint saved in that round or before. So a row is
needed as long as a current manifest lists it: the one in force, or a newer one that is pending. A checkpoint's object
is written before its row, and deleted before it. A manifest's row is written first, because the node recognizes its own
manifest by it.

A chain to whose head neither the log nor a checkpoint leads is unproven until its next checkpoint.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, cast

import msgpack

from protocol.values import Dot
from replicator.store.checkpoints.checkpoint import write_mailbox, write_tree
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.entry_validation import NamedHead, why_not_head
from replicator.store.db.rows.message_rows import DamagedRowError, unpacked_context
from replicator.store.db.transaction import Transaction
from resync import row as rows_of
from resync.bulk import hash_of
from resync.row import Row

SLICE_ROWS = 1000  # some milliseconds of a reader's or the writer's thread

_COLUMNS = "user, chain, uidvalidity, origin, seq, modseq, time"
_UNSAVED = (
    "head_seq IS NOT NULL AND NOT EXISTS (SELECT 1 FROM checkpoint k"
    " WHERE k.chain = id AND k.modseq = highestmodseq AND k.origin = head_origin AND k.seq = head_seq)"
)


class Round(NamedTuple):
    """A manifest and its data. `made_ms` None: it is unknown whether the manifest is in the object store."""

    number: int
    made_ms: int | None
    in_force: bool
    context: dict[str, int]
    covered: dict[str, int]
    position: int
    heads: int


class Checkpoint(NamedTuple):
    """A chain's head, and the bytes of the object that holds its state, generated as they are consumed."""

    head: NamedHead
    data: Iterator[bytes]

    def joined(self, bytes_max: int) -> bytes | None:
        """Return the bytes as one; None if they are more than that."""
        joined = bytearray()
        for piece in self.data:
            joined += piece
            if len(joined) > bytes_max:
                return None
        return bytes(joined)


def rounds(connection: sqlite3.Connection) -> list[Round]:
    """Return the current rounds in order: one in force, then one pending, then one that may be unfinished.

    Raises DamagedRowError.
    """
    query = "SELECT round, made_ms, in_force, context, covered, position, heads FROM manifest ORDER BY round"
    context_from = partial(unpacked_context, what="a manifest's row")
    return [
        Round(number, made_ms, bool(in_force), context_from(context), context_from(covered), position, heads)
        for number, made_ms, in_force, context, covered, position, heads in connection.execute(query)
    ]


def is_unproven_unsaved(connection: sqlite3.Connection) -> bool:
    """Return True if unproven chains wait for their next checkpoint."""
    # CROSS JOIN fixes the join order: SQLite would otherwise look at all chains.
    query = f"SELECT 1 FROM unproven u CROSS JOIN chain ON id = u.chain WHERE {_UNSAVED} LIMIT 1"
    return connection.execute(query).fetchone() is not None


def is_unproven(connection: sqlite3.Connection, chain_id: bytes) -> bool:
    """Return True if the chain is unproven, or was when it was last saved."""
    return connection.execute("SELECT 1 FROM unproven WHERE chain = ?", (chain_id,)).fetchone() is not None


def unsaved(connection: sqlite3.Connection, after: bytes) -> list[bytes]:
    """Return a slice of the chains, by id, whose heads are not saved."""
    query = f"SELECT id FROM chain WHERE id > ? AND {_UNSAVED} ORDER BY id LIMIT ?"
    return [chain_id for (chain_id,) in connection.execute(query, (after, SLICE_ROWS))]


def unlisted(connection: sqlite3.Connection, after: bytes) -> list[bytes]:
    """Return a slice of the chains, by id, that have lost all checkpoints, or were taken over and have none yet."""
    query = (
        "SELECT u.chain FROM unproven u JOIN chain ON id = u.chain WHERE u.chain > ? AND head_seq IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM checkpoint k WHERE k.chain = u.chain) ORDER BY u.chain LIMIT ?"
    )
    return [chain_id for (chain_id,) in connection.execute(query, (after, SLICE_ROWS))]


def contexts(connection: sqlite3.Connection, after: bytes) -> tuple[dict[str, int], bytes | None]:
    """Return the joined context of a slice of the chains, and its last id; None: no chains left.

    Raises DamagedRowError.
    """
    seen: dict[str, int] = {}
    last = None
    query = "SELECT id, context FROM chain WHERE id > ? ORDER BY id LIMIT ?"
    for chain_id, packed in connection.execute(query, (after, SLICE_ROWS)):
        last = chain_id
        for origin, seq in unpacked_context(packed, "a mailbox's row").items():
            seen[origin] = max(seq, seen.get(origin, 0))
    return seen, last


def checkpoint_of(
    connection: sqlite3.Connection, chain_id: bytes, now_ms: int, *, messages_max: int | None = None
) -> Checkpoint | None:
    """Return a checkpoint of a chain's state; None without a head, or with more messages than `messages_max`.

    The caller begins and ends the transaction.

    `now_ms` is the time used for a head whose entry is not in the log. Raises DatabaseDamagedError, possibly only at
    the end of the data: a damaged state is not sealed, since the log may then be all that can repair it.
    """
    chain = chains.load(connection, chain_id)
    if chain is None or chain.head is None or (messages_max is not None and chain.messages > messages_max):
        return None
    row = connection.execute("SELECT time FROM log WHERE origin = ? AND seq = ?", chain.head).fetchone()
    time = row[0] if row else max(1, now_ms) << 16
    if not isinstance(time, int):
        raise DamagedRowError("an entry of the log")
    head = NamedHead(chain.user, chain_id, chain.uidvalidity, chain.head, chain.highestmodseq, time)
    if why_not_head(head) is not None:
        raise _not_whole(chain)
    if head.is_tree:
        tree = queries.tree_state(connection, chain.user, chain)
        if rows_of.add(0, *map(hash_of, tree.rows())) != chain.fingerprint:
            raise _not_whole(chain)
        return Checkpoint(head, write_tree(head, chain.history, tree))
    rows = _whole(chain, queries.mailbox_rows(connection, chain_id))
    return Checkpoint(head, write_mailbox(head, chain.history, chain, rows))


def _whole(chain: Chain, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows; raise DatabaseDamagedError at the end if they do not match the chain's counters."""
    total = count = 0
    for row in rows:
        total, count = rows_of.add(total, row.fingerprint()), count + 1
        yield row
    if (total, count) != (chain.fingerprint, chain.messages):
        raise _not_whole(chain)


def _not_whole(chain: Chain) -> DatabaseDamagedError:
    what = f"mailbox {chain.id.hex()}" if chain.uidvalidity else "the folder tree"
    return DatabaseDamagedError(f"{what} of {chain.user} is damaged: its rows do not match its counters; run"
                                " `replicator check --repair` at this node")  # fmt: skip


def heads_of(connection: sqlite3.Connection, chain_id: bytes) -> list[NamedHead]:
    """Return the saved heads of a chain, the newest first."""
    query = f"SELECT {_COLUMNS} FROM checkpoint WHERE chain = ? ORDER BY modseq DESC"
    return list(map(_head, connection.execute(query, (chain_id,))))


def heads_in(connection: sqlite3.Connection, number: int) -> Iterator[NamedHead]:
    """Yield the heads that the manifest of a round lists, by chain id."""
    query = f"SELECT {_COLUMNS}, MAX(modseq) FROM checkpoint WHERE round <= ? GROUP BY chain ORDER BY chain"
    yield from (_head(row[:-1]) for row in connection.execute(query, (number,)))


def count_heads(connection: sqlite3.Connection, number: int) -> int:
    """Return the number of heads that the manifest of a round lists."""
    query = "SELECT COUNT(DISTINCT chain) FROM checkpoint WHERE round <= ?"
    count: int = connection.execute(query, (number,)).fetchone()[0]
    return count


def superfluous(connection: sqlite3.Connection, after: bytes) -> tuple[list[NamedHead], bytes | None]:
    """Return checkpoints of a slice of the chains that no current manifest lists, and the last id; None: none left.

    The newest checkpoint of each chain is kept for the next round, so chains that have one alone are passed over.
    """
    numbers = [number for (number,) in connection.execute("SELECT round FROM manifest")]
    query = (
        f"SELECT {_COLUMNS}, round FROM checkpoint WHERE chain IN (SELECT chain FROM checkpoint WHERE chain > ?"
        " GROUP BY chain HAVING COUNT(*) > 1 ORDER BY chain LIMIT ?) ORDER BY chain, modseq DESC"
    )
    found: list[NamedHead] = []
    last = None
    for chain_id, of_chain in groupby(connection.execute(query, (after, SLICE_ROWS)), key=lambda row: row[1]):
        newest, *rows = of_chain
        last = chain_id
        needed = {newest[-1], *(max((row[-1] for row in (newest, *rows) if row[-1] <= n), default=0) for n in numbers)}
        kept = {newest[-1]}
        for row in rows:
            if row[-1] not in needed or row[-1] in kept:
                found.append(_head(row[:-1]))
            kept.add(row[-1])
    return found, last


def are_saved(connection: sqlite3.Connection, chain_ids: Sequence[bytes]) -> list[NamedHead]:
    """Return all saved heads of these chains."""
    return [head for chain_id in chain_ids for head in heads_of(connection, chain_id)]


# ---- jobs of the writer


def note_saved(tx: Transaction, head: NamedHead, number: int) -> None:
    """Record that the checkpoint is in the object store."""
    tx.connection.execute(
        f"INSERT OR REPLACE INTO checkpoint ({_COLUMNS}, round) VALUES (?,?,?,?,?,?,?,?)",
        (head.user, head.mailbox_id, head.uidvalidity, *head.dot, head.modseq, head.time, number),
    )
    query = "DELETE FROM unproven WHERE chain = ? AND modseq <= ?"
    tx.connection.execute(query, (head.mailbox_id, head.modseq))


def note_unproven(tx: Transaction, chain_id: bytes, modseq: int) -> None:
    """Record that the chain is at a head of this MODSEQ to which the log does not lead."""
    tx.connection.execute("INSERT OR REPLACE INTO unproven (chain, modseq) VALUES (?,?)", (chain_id, modseq))


def begin_manifest(tx: Transaction, begun: Round) -> None:
    """Record a manifest about to be written; everything that it lists is saved."""
    tx.connection.execute("DELETE FROM manifest WHERE made_ms IS NULL")
    tx.connection.execute(
        "INSERT INTO manifest (round, in_force, context, covered, position, heads) VALUES (?,0,?,?,?,?)",
        (begun.number, msgpack.packb(begun.context), msgpack.packb(begun.covered), begun.position, begun.heads),
    )


def note_manifest(tx: Transaction, number: int, made_ms: int) -> None:
    """Record that the manifest is in the object store and pending; an earlier pending one is dropped."""
    tx.connection.execute("UPDATE manifest SET made_ms = ? WHERE round = ?", (made_ms, number))
    tx.connection.execute("DELETE FROM manifest WHERE in_force = 0 AND round <> ?", (number,))


def put_in_force(tx: Transaction, number: int) -> None:
    """Put the manifest in force, and drop all older ones."""
    tx.connection.execute("UPDATE manifest SET in_force = 1 WHERE round = ?", (number,))
    tx.connection.execute("DELETE FROM manifest WHERE round < ?", (number,))


def forget_heads(tx: Transaction, heads: Sequence[NamedHead]) -> None:
    """Forget checkpoints that are no longer in the object store."""
    rows = ((head.mailbox_id, head.modseq) for head in heads)
    tx.connection.executemany("DELETE FROM checkpoint WHERE chain = ? AND modseq = ?", rows)


def forget_unreadable(tx: Transaction, head: NamedHead) -> None:
    """Forget an unreliable checkpoint: the next round saves the chain again, unless its head is saved otherwise."""
    chain = tx.chain(head.mailbox_id)
    query = "DELETE FROM checkpoint WHERE chain = ? AND modseq = ? AND origin = ? AND seq = ?"
    tx.connection.execute(query, (head.mailbox_id, head.modseq, *head.dot))
    if chain is not None and all(saved.dot != chain.head for saved in heads_of(tx.connection, chain.id)):
        note_unproven(tx, chain.id, chain.highestmodseq)


def forget(tx: Transaction) -> bool:
    """Forget everything in the object store, so that all is saved again. Return True if there is more to do."""
    tx.connection.execute("DELETE FROM manifest")
    query = "DELETE FROM checkpoint WHERE (chain, modseq) IN (SELECT chain, modseq FROM checkpoint LIMIT ?)"
    return tx.connection.execute(query, (SLICE_ROWS,)).rowcount == SLICE_ROWS


def _head(row: tuple[object, ...]) -> NamedHead:
    user, chain_id, uidvalidity, origin, seq, modseq, time = row
    return NamedHead(
        cast("str", user),
        cast("bytes", chain_id),
        cast("int", uidvalidity),
        Dot(cast("str", origin), cast("int", seq)),
        cast("int", modseq),
        cast("int", time),
    )
