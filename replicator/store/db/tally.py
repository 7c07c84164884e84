"""The digest of all that a node shows, counted by the writer: once, slice by slice, and then carried on by each commit.

The digest is the sum of those of all mailboxes and trees, which takes some 30 µs each to add up. So whoever asks for it
does not wait for all of them. It is counted anew each hour, after a check, and where damage was repaired, so that
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
    """Return what a mailbox or tree adds to the tally."""
    return int.from_bytes(chain.digest()), int(chain.uidvalidity > 0)


class Tally(NamedTuple):
    """The sum over all mailboxes and trees whose ids are not above `upto`, or over all if it `is_whole`."""

    digest: int = 0
    mailboxes: int = 0
    upto: bytes = b""
    is_whole: bool = False

    def has(self, chain_id: bytes) -> bool:
        """Return True if the sum is over this mailbox or tree, too."""
        return self.is_whole or chain_id <= self.upto

    def changed(self, changes: Iterable[tuple[Shown, Shown]]) -> Tally:
        """Return the sum after mailboxes and trees have changed: what each added before, and what it adds now."""
        digest, mailboxes = self.digest, self.mailboxes
        for before, after in changes:
            digest = rows.add(rows.remove(digest, before[0]), after[0])
            mailboxes += after[1] - before[1]
        return self._replace(digest=digest, mailboxes=mailboxes)

    def extended(self, connection: sqlite3.Connection) -> Tally:
        """Return the sum with the next slice. Raises DamagedRowError."""
        query = f"{chains.SELECT} WHERE id > ? ORDER BY id LIMIT ?"
        some = [chains.from_row(row) for row in connection.execute(query, (self.upto, SLICE_CHAINS))]
        more = self.changed((NOTHING, shown(chain)) for chain in some)
        return more._replace(upto=some[-1].id if some else self.upto, is_whole=len(some) < SLICE_CHAINS)


NO_TALLY = Tally()


def count_all(connection: sqlite3.Connection) -> Tally:
    """Return the sum over all mailboxes and trees, counted beside the writer. Raises DamagedRowError."""
    tally = NO_TALLY
    connection.execute("BEGIN")
    try:
        while not tally.is_whole:
            tally = tally.extended(connection)
        return tally
    finally:
        connection.execute("COMMIT")
