"""A walk down a mailbox's or tree's history through the log, from the newest entry to older ones, for stories.

The log has no index of mailboxes, so the walk goes from each entry to those that it names as its predecessors. It
begins at the head, and at the entries that wait or were abandoned. It runs in slices: a reader is held for some
milliseconds at a time, and entries that leave the log meanwhile count as having left it before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Literal, NamedTuple, TypeAlias

from protocol.values import Dot
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.rows.message_rows import DamagedRowError
from resync.entry import Entry

SLICE_ENTRIES = 500  # some 20 ms of a reader's thread
READ_BYTES_MAX = 64 << 20  # of entries in all; a merge of a large mailbox may have many megabytes
UNSHOWN_MAX = 1000  # entries that wait, or are abandoned, from which the walk begins
SCANNED_MAX = 100_000  # places at the log's end that are looked through if the log lacks the head's entry

Absence: TypeAlias = Literal["left", "missing", "unreadable"]

_UNSHOWN = "SELECT origin, seq FROM log WHERE chain = ? AND applied = {} ORDER BY position DESC LIMIT ?"
_STATES: dict[int, Literal["shown", "waiting", "abandoned"]] = {0: "waiting", 1: "shown", 2: "abandoned"}


def whole(entry: Entry) -> Entry:
    """Return the entry as it is: see `ChainWalk`."""
    return entry


class WalkedEntry(NamedTuple):
    """An entry, and whether this node shows it."""

    entry: Entry
    state: Literal["shown", "waiting", "abandoned"]


class ChainWalk:
    """The walk, until it has found `most` entries.

    `keep` returns the part of an entry that is to stay in memory. `found` has the entries, each after all that stand on
    it, which is the order of their stamps; `absent` those that the log does not have. `is_cut`: there is more.
    """

    def __init__(self, chain_id: bytes, *, most: int, keep: Callable[[Entry], Entry] = whole) -> None:
        self.head: Dot | None = None
        self.found: list[WalkedEntry] = []
        self.absent: dict[Dot, Absence] = {}
        self.is_cut = False
        self._chain_id = chain_id
        self._most = most
        self._keep = keep
        self._reached: set[Dot] = set()
        self._queue: list[tuple[int, Dot, WalkedEntry]] = []
        self._read_bytes = 0
        self._has_begun = False

    @property
    def base(self) -> Dot | None:
        """The one entry on which all that were found stand, if there is one: the log, or the walk, begins after it.

        Above several, branches may show a message under several UIDs.
        """
        below = [*self.absent, *(dot for _, dot, _ in self._queue)]
        has_first = any(not walked.entry.predecessors for walked in self.found)
        return below[0] if len(below) == 1 and not has_first else None

    def go_on(self, connection: sqlite3.Connection) -> bool:
        """Walk a slice further. Return True if there is more to walk."""
        if not self._has_begun:
            self._begin(connection)
        for _ in range(SLICE_ENTRIES):
            if not self._queue or self.is_cut:
                return False
            self._step(connection)
        return True

    def cut(self) -> None:
        """End the walk here: it takes too long."""
        self.is_cut = True

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._has_begun = True
        chain = chains.load(connection, self._chain_id)
        self.head = None if chain is None else chain.head
        if self.head is not None:
            self._reach(connection, self.head)
            if not self._queue:
                self._find_last(connection)
        for applied in (0, 2):
            for row in connection.execute(_UNSHOWN.format(applied), (self._chain_id, UNSHOWN_MAX)).fetchall():
                self._reach(connection, Dot(*row))

    def _find_last(self, connection: sqlite3.Connection) -> None:
        """Begin at the last entry that the log has: the state that is shown was taken over from another node."""
        query = "SELECT origin, seq FROM log WHERE position > ? AND chain = ? ORDER BY position DESC LIMIT 1"
        last = connection.execute(query, (queries.log_end(connection) - SCANNED_MAX, self._chain_id)).fetchone()
        if last is not None:
            self._reach(connection, Dot(*last))

    def _step(self, connection: sqlite3.Connection) -> None:
        if len(self.found) >= self._most or self._read_bytes > READ_BYTES_MAX:
            self.is_cut = True
            return
        _, _, walked = heappop(self._queue)
        self.found.append(walked)
        for dot in walked.entry.predecessors:
            self._reach(connection, dot)

    def _reach(self, connection: sqlite3.Connection, dot: Dot) -> None:
        if dot in self._reached:
            return
        self._reached.add(dot)
        row = connection.execute("SELECT body, applied FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
        if row is None:
            self.absent[dot] = "left" if _has_left(connection, dot) else "missing"
            return
        try:
            entry = queries.entry_of(dot, row[0])
        except DamagedRowError:
            self.absent[dot] = "unreadable"
            return
        self._read_bytes += len(row[0])
        heappush(self._queue, (-entry.time, dot, WalkedEntry(self._keep(entry), _STATES.get(row[1], "shown"))))


def _has_left(connection: sqlite3.Connection, dot: Dot) -> bool:
    row = connection.execute("SELECT collected FROM origin WHERE name = ?", (dot.origin,)).fetchone()
    return row is not None and row[0] >= dot.seq
