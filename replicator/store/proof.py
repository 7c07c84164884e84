"""Which head a mailbox or tree has, where the row that says so may be damaged.

The row is believed if the log leads to its head and the state there has the row's context and MODSEQ. Otherwise the
head is the last entry that the log says was applied; but only if the log has every entry that ever came, since without
its end a mailbox would go back to a state that clients have seen changed.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from protocol.values import Dot
from replicator.store.chain import Chain
from replicator.store.past import Past, past_at
from resync.entry import Entry
from resync.state import ContradictionError

_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
"""What entries raise that were whole when they came, and are not what they were."""


def proven_past(connection: sqlite3.Connection, chain_id: bytes, shown: Chain | None) -> Past | None:
    """What the log says that this node should show; `shown` is what the chain's row says, if it says anything.

    None if nothing of it ever was in the log. Raises ContradictionError if the log cannot tell.
    """
    try:
        return _shown_past(connection, chain_id, shown) or _last_past(connection, chain_id)
    except _UNREADABLE as error:
        raise ContradictionError(f"an entry cannot be read ({error!r})") from error


def log_lacks(connection: sqlite3.Connection) -> int:
    """How many entries came here that the log has no longer."""
    query = "SELECT (SELECT COALESCE(SUM(seq), 0) FROM origin) - (SELECT COUNT(*) FROM log)"  # as of one moment
    lacking: int = connection.execute(query).fetchone()[0]
    return lacking


def _shown_past(connection: sqlite3.Connection, chain_id: bytes, shown: Chain | None) -> Past | None:
    if shown is None or shown.head is None:
        return None
    with suppress(ContradictionError):
        past = past_at(connection, shown.head, detours=True)
        if past is not None and past.chain_id == chain_id:
            state = past.state
            return past if (state.context, state.modseq) == (shown.context, shown.highestmodseq) else None
    return None


def _last_past(connection: sqlite3.Connection, chain_id: bytes) -> Past | None:
    """Reads the whole log: it has no index by mailbox, which only damage would need."""
    if lacking := log_lacks(connection):
        raise ContradictionError(f"the log lacks {lacking} entries that came")
    seen: dict[str, int] = {}
    head: tuple[int, Dot] | None = None
    query = "SELECT origin, seq, body FROM log WHERE chain = ? AND applied = 1"
    for origin, seq, body in connection.execute(query, (chain_id,)):
        dot = Dot(origin, seq)
        head = max(head or (0, dot), (Entry.unpack(dot, body).modseq, dot))
        seen[origin] = max(seen.get(origin, 0), seq)
    if head is None:
        return None
    past = past_at(connection, head[1], detours=True)
    if past is None:
        raise ContradictionError(f"no way leads to {head[1]}")
    if past.chain_id != chain_id:
        raise ContradictionError(f"{head[1]} is an entry of another mailbox")
    if any(past.state.context.get(origin, 0) < seq for origin, seq in seen.items()):
        raise ContradictionError("entries of two branches count as applied")
    return past
