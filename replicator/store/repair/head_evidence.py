"""Evidence for the head of a mailbox or tree whose row may be damaged.

The row is trusted if the log leads to its head and the state there has the row's context and MODSEQ. Otherwise the head
is the last entry that the log marks as applied, but only if the log has every entry that arrived and was not collected:
with its end missing, the mailbox would go back to a state that clients have already seen changed. If the log begins too
late to tell, and no checkpoint leads on from there, nothing is proven and nothing is wrong.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from protocol.values import Dot
from replicator.store.checkpoints import catalog
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.log.replay import Base, Past, past_at
from resync.entry import Entry
from resync.state import ContradictionError

_UNREADABLE = (DamagedRowError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
"""Errors raised in reading entries that were sound on arrival and are damaged now."""


class UnprovenError(Exception):
    """A state that the log cannot tell and need not: until the next checkpoint, the mailbox's past is elsewhere."""


def proven_past(
    connection: sqlite3.Connection, chain_id: bytes, shown: Chain | None, base: Base | None = None
) -> Past | None:
    """Return the state that this node should show according to the log; `shown` is the chain's row, if readable.

    `base` is a base of the chain. None if the log never had any entry of it. Raises ContradictionError if the log
    cannot tell but should, UnprovenError if it need not.
    """
    try:
        past = _shown_past(connection, chain_id, shown, base)
        if past is None and catalog.is_unproven(connection, chain_id):
            raise UnprovenError
        return past or _last_past(connection, chain_id, base)
    except _UNREADABLE as error:
        raise ContradictionError(f"cannot read an entry ({error!r})") from error


def log_lacks(connection: sqlite3.Connection) -> int:
    """Return how many entries arrived that the log lacks although they were not collected, including earlier losses."""
    query = (  # one statement, so that both counts are of one moment
        "SELECT (SELECT COALESCE(SUM(seq - collected + lost), 0) FROM origin)"
        " - (SELECT COUNT(*) FROM log l JOIN origin o ON o.name = l.origin WHERE l.seq > o.collected)"
    )
    lacking: int = connection.execute(query).fetchone()[0]
    return lacking


def _shown_past(connection: sqlite3.Connection, chain_id: bytes, shown: Chain | None, base: Base | None) -> Past | None:
    if shown is None or shown.head is None:
        return None
    with suppress(ContradictionError):
        past = past_at(connection, shown.head, base, detours=True)
        if past is not None and past.chain_id == chain_id:
            state = past.state
            return past if (state.context, state.modseq) == (shown.context, shown.highestmodseq) else None
    return None


def _last_past(connection: sqlite3.Connection, chain_id: bytes, base: Base | None) -> Past | None:
    """Return the state at the last applied entry. Reads the whole log: only damage would need an index by mailbox."""
    if lacking := log_lacks(connection):
        raise ContradictionError(f"the log lacks {lacking} entries that had arrived")
    begins_later = bool(queries.log_collected(connection))
    seen: dict[str, int] = {}
    head = None if base is None else (base.head.modseq, base.head.dot)
    query = "SELECT origin, seq, body FROM log WHERE chain = ? AND applied = 1"
    for origin, seq, body in connection.execute(query, (chain_id,)):
        dot = Dot(origin, seq)
        head = max(head or (0, dot), (Entry.unpack(dot, body).modseq, dot))
        seen[origin] = max(seen.get(origin, 0), seq)
    past = past_at(connection, head[1], base, detours=True) if head is not None else None
    if past is None and begins_later:
        raise UnprovenError
    if head is None:
        return None
    if past is None:
        raise ContradictionError(f"the log has no path to {head[1]}")
    if past.chain_id != chain_id:
        raise ContradictionError(f"{head[1]} is an entry of another mailbox")
    if any(past.state.context.get(origin, 0) < seq for origin, seq in seen.items()):
        raise ContradictionError("entries of two branches are marked as applied")
    return past
