"""The digest of all that a node shows: carried on by each commit, and kept in the database.

The digest is the sum of those of all mailboxes and trees, which takes some 30 µs each to add up. So they are counted
once, when the database is new or of an earlier version, and from then on the sum is changed with what it sums up, in
one transaction. Each day, and after a check, all are counted anew, slice by slice beside the sum that is known, so that
damage to rows that nobody reads does not stay hidden behind a sum of the past.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from resync import row as rows

SLICE_CHAINS = 200  # some 6 ms of the writer's thread

Shown = tuple[int, int]
"""The digest of a mailbox or tree, and 1 for a mailbox or 0."""

NOTHING: Shown = (0, 0)


def shown(chain: Chain) -> Shown:
    """Return what a mailbox or tree adds to a sum."""
    return int.from_bytes(chain.digest()), int(chain.uidvalidity > 0)


class Tally(NamedTuple):
    """A sum over mailboxes and trees: their digest, and the number of the mailboxes."""

    digest: int = 0
    mailboxes: int = 0

    def changed(self, changes: Iterable[tuple[Shown, Shown]]) -> Tally:
        """Return the sum after mailboxes and trees have changed: what each added before, and what it adds now."""
        digest, mailboxes = self
        for before, after in changes:
            digest = rows.add(rows.remove(digest, before[0]), after[0])
            mailboxes += after[1] - before[1]
        return Tally(digest, mailboxes)


class Count(NamedTuple):
    """A count under way: the sum over all mailboxes and trees with ids up to `upto`, or over all if it `is_whole`."""

    tally: Tally = Tally()
    upto: bytes = b""
    is_whole: bool = False

    def has(self, chain_id: bytes) -> bool:
        """Return True if the sum is over this mailbox or tree, too."""
        return chain_id <= self.upto

    def extended(self, connection: sqlite3.Connection) -> Count:
        """Return the count with the next slice. Raises DamagedRowError."""
        query = f"{chains.SELECT} WHERE id > ? ORDER BY id LIMIT ?"
        some = [chains.from_row(row) for row in connection.execute(query, (self.upto, SLICE_CHAINS))]
        tally = self.tally.changed((NOTHING, shown(chain)) for chain in some)
        return Count(tally, some[-1].id if some else self.upto, is_whole=len(some) < SLICE_CHAINS)


NO_COUNT = Count()


def count_all(connection: sqlite3.Connection) -> Tally:
    """Return the sum over all mailboxes and trees, counted beside the writer. Raises DamagedRowError."""
    count = NO_COUNT
    connection.execute("BEGIN")
    try:
        while not count.is_whole:
            count = count.extended(connection)
        return count.tally
    finally:
        connection.execute("COMMIT")


def load(connection: sqlite3.Connection) -> Tally | None:
    """Return the sum that the last transaction has left; None: it is to be counted."""
    digest, mailboxes = connection.execute("SELECT digest, mailboxes FROM tally").fetchone() or (None, None)
    if not (isinstance(digest, bytes) and len(digest) == rows.FINGERPRINT_BYTES and isinstance(mailboxes, int)):
        return None
    return Tally(int.from_bytes(digest), mailboxes)


def save(connection: sqlite3.Connection, tally: Tally | None) -> None:
    """Write the sum, or that there is none."""
    if tally is None:
        connection.execute("DELETE FROM tally")
    else:
        values = (rows.to_bytes(tally.digest), tally.mailboxes)
        connection.execute("INSERT OR REPLACE INTO tally (id, digest, mailboxes) VALUES (1, ?, ?)", values)
