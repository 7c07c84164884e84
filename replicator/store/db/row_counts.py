"""Totals that a chain's row keeps of its rows, so that they need not all be read (design section 6)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from replicator.mail.view import SEEN
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from resync import bulk
from resync import row as rows
from resync.row import Row

ROWS_AT_ONCE = 1000  # in memory


class Counted(NamedTuple):
    """Totals over messages or, fingerprint only, over a tree's rows."""

    messages: int = 0
    unseen: int = 0
    size_bytes: int = 0
    fingerprint: int = 0

    def plus(self, more: Iterable[Row]) -> Counted:
        """Return the totals with these messages added."""
        messages, unseen, size_bytes, hashes = self.messages, self.unseen, self.size_bytes, list[int]()
        for row in more:
            messages, size_bytes = messages + 1, size_bytes + row.size_bytes
            unseen += SEEN not in row.visible_flags()
            hashes.append(row.fingerprint())
        return Counted(messages, unseen, size_bytes, rows.add(self.fingerprint, *hashes))


def said(chain: Chain) -> Counted:
    """Return the totals in the chain's row."""
    return Counted(chain.messages, chain.unseen, chain.size_bytes, chain.fingerprint)


def count(connection: sqlite3.Connection, chain: Chain) -> Counted:
    """Count the rows of a mailbox or tree. Raises DamagedRowError."""
    *_, (_, counted) = counting(connection, chain)
    return counted


def counting(
    connection: sqlite3.Connection, chain: Chain, slice_rows: int = ROWS_AT_ONCE
) -> Iterator[tuple[int, Counted]]:
    """Count in slices; yield each slice's number of rows and the totals so far. Raises DamagedRowError."""
    if chain.uidvalidity == 0:
        items = queries.tree_rows(connection, chain.user)
        yield len(items), Counted(fingerprint=rows.add(0, *map(bulk.hash_of, items)))
        return
    counted, messages = Counted(), queries.mailbox_rows(connection, chain.id)
    while True:
        some = list(islice(messages, slice_rows))
        counted = counted.plus(some)
        yield len(some), counted
        if len(some) < slice_rows:
            return
