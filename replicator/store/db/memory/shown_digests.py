"""The digests of all mailboxes and trees, kept in memory for comparisons with other nodes.

To read them takes some 20 µs each, and neighbours compare all of them after each election and each start. So they are
read once, and from then on each commit says which have changed. Their sum must be the tally (`tally.py`).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol, TypeVar

import trio

from replicator.runtime.environment import ThreadRunner
from replicator.store.db import queries
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.db.tally import Tally
from replicator.store.db.transaction import Commit
from resync.ranges import Fingerprints

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reader(Protocol):
    """A reading connection of its own, since this takes long."""

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer."""
        ...


class ShownDigests:
    """The digests as of a commit, 35 bytes for each mailbox and tree. Belongs to the event loop.

    `flush` returns once all commits that a reader can see have been given to `note`.
    """

    def __init__(
        self,
        open_reader: Callable[[], AbstractAsyncContextManager[Reader]],
        flush: Callable[[], Awaitable[None]],
        run_in_thread: ThreadRunner,
    ) -> None:
        self._open_reader = open_reader
        self._flush = flush
        self._run_in_thread = run_in_thread
        self._known: Fingerprints | None = None
        self._changed: dict[bytes, int] = {}  # since then
        self._may_follow = False  # each commit since then has said what it changed
        self._tally: Tally | None = None  # as of the last commit
        self._turn = trio.Lock()  # so that peers that ask at once, as after an election, do not slow each other

    def note(self, commit: Commit) -> None:
        """Follow a published commit."""
        self._tally = commit.tally
        if commit.digests is None:
            self._forget()
        elif self._may_follow:
            self._changed |= commit.digests

    async def get(self) -> Fingerprints:
        """Return the digests by the ids of mailboxes and trees, as of some commit since this was called.

        Raises DamagedRowError, DatabaseFailedError.
        """
        async with self._turn:
            if self._known is None:
                self._forget()
                self._may_follow = True
                known = await self._read()
                await self._flush()
                if not self._may_follow:
                    return known
                self._known = known
            known, changed, tally = self._known, dict(self._changed), self._tally
            if changed:
                known = await self._follow(known, changed)
            if tally is None or known.of("").total == tally.digest:
                return known
            log.info("the digests of all mailboxes do not add up to their sum: they are read again")
            self._forget()
            return await self._read()

    async def _follow(self, known: Fingerprints, changed: Mapping[bytes, int]) -> Fingerprints:
        """Return the digests after these changes, and keep them unless they have been forgotten meanwhile."""
        followed = await self._run_in_thread(partial(known.patched, changed))
        if self._known is known:
            self._known = followed
            self._changed = {key: digest for key, digest in self._changed.items() if changed.get(key) != digest}
        return followed

    def _forget(self) -> None:
        self._known, self._may_follow = None, False
        self._changed.clear()

    async def _read(self) -> Fingerprints:
        async with self._open_reader() as reader:
            return await reader.read(_read_all)


def _read_all(connection: sqlite3.Connection) -> Fingerprints:
    with queries.at_one_moment(connection):
        digests = ((chain.id, int.from_bytes(chain.digest())) for chain in queries.chains_of(connection, None))
        try:
            return Fingerprints(digests)
        except ValueError as error:
            raise DamagedRowError("the row of a mailbox or tree") from error
