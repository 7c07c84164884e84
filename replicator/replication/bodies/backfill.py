"""Texts of messages that came without entries, which bring them: fetched from neighbours, the newest first.

Until one is here it is fetched when it is read. What was taken over is remembered on disk, so this goes on after a
restart. What was not to be had is asked for again now and then, and not whenever something else comes: a node may lack
many texts that are lost, and its users copy all the time.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial

import trio

from replicator.errors import MailError
from replicator.replication.bodies.body_store import WriteText
from replicator.replication.parallel import in_turns
from replicator.store.bodies.body_rows import (
    DOUBTED_MS,
    StoredText,
    doubt_lacking,
    forget_lacking,
    is_here,
    is_lacking,
    lacking,
    lacking_count,
    lacking_in_vain,
    still_lacking,
    write_text,
)
from replicator.store.db.transaction import Commit, Transaction
from replicator.store.store import Store
from resync.entry import Entry, MailAdd, Merge

AT_ONCE = 16  # texts on their way
SLICE = 256  # texts of one look
PATIENCE_S = 5.0  # most texts of a merge are on their way with its branches' entries
RETRY_S = 30.0  # from a look for all that is lacking to the next one, if not all was to be had
NOTED = 100_000  # texts noted between two looks: some 20 MB. What is beyond waits for a look for all that is lacking


class Backfill:
    """Belongs to the event loop. `fetch`: see `BodyStore.fetch`."""

    def __init__(self, store: Store, fetch: Callable[[bytes, WriteText], Awaitable[bool]]) -> None:
        self._store = store
        self._fetch = fetch
        self._wanted = trio.Event()
        self._noted = set[tuple[int, bytes]]()  # what came without a text since the last look
        self._all_at = -math.inf  # when all that is lacking is asked for; math.inf: nothing was lacking
        self.lacking = 0  # texts, as of the last look; one of several messages may count more than once
        store.listeners.append(self._note_commit)

    async def run(self) -> None:
        """Fetch what is lacking until cancelled."""
        while True:
            with trio.move_on_at(self._all_at):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await trio.sleep(PATIENCE_S)
            with suppress(MailError, sqlite3.Error):
                await self._look()

    async def _look(self) -> None:
        """Fetch what can be had of all that is lacking, or before its time has come, of what was noted since."""
        noted, self._noted = self._noted, set()
        if trio.current_time() < self._all_at < math.inf:
            await self._look_for_noted(sorted(noted, reverse=True))
            return
        self._all_at = trio.current_time() + RETRY_S  # if this fails
        await self._look_for_all()
        if not self.lacking:
            self._all_at = math.inf
            return
        await self._forget_in_vain()  # reads all messages
        self._all_at = trio.current_time() + RETRY_S

    async def _look_for_noted(self, noted: list[tuple[int, bytes]]) -> None:
        for start in range(0, len(noted), SLICE):
            some = noted[start : start + SLICE]
            await self._forget(await self._fetched(await self._store.read(partial(still_lacking, noted=some))))

    async def _look_for_all(self) -> None:
        self.lacking = await self._store.read(lacking_count)
        after: tuple[int, bytes] | None = None
        while some := await self._store.read(partial(lacking, before=after, count=SLICE)):
            after = some[-1]
            await self._forget(await self._fetched(some))

    async def _forget_in_vain(self) -> None:
        """What no message has is doubted, looked for once more, and forgotten; see `doubt_lacking`."""
        in_vain = await self._store.read(lacking_in_vain)
        if not in_vain:
            return
        await self._store.write(lambda tx: doubt_lacking(tx.connection, in_vain))
        doubted = [item for item in await self._store.read(lacking_in_vain) if item[0] == DOUBTED_MS]
        await self._forget(doubted)

    async def _forget(self, found: list[tuple[int, bytes]]) -> None:
        if found:
            await self._store.write(lambda tx: forget_lacking(tx.connection, found))
        self.lacking = await self._store.read(lacking_count)

    async def _fetched(self, some: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        found = list[tuple[int, bytes]]()

        async def fetch(item: tuple[int, bytes]) -> None:
            if await self._is_here_now(item):
                found.append(item)

        await in_turns(fetch, some, AT_ONCE)
        return found

    async def _is_here_now(self, item: tuple[int, bytes]) -> bool:
        content_hash = item[1]
        try:
            if await self._store.read(partial(is_here, content_hash=content_hash)):
                return True
            return await self._fetch(content_hash, partial(_keep, item=item))
        except (MailError, sqlite3.Error):
            pass
        return False

    def _note_commit(self, commit: Commit) -> None:
        for entry in commit.applied:
            if len(self._noted) < NOTED:
                self._noted.update(_without_texts(entry))
        if self._noted:
            self._wanted.set()


def _keep(stored: StoredText, tx: Transaction, item: tuple[int, bytes]) -> None:
    """It is counted at once: how many are left says whether any come, and others of one look may take long.

    Its message may have come with it, and been forgotten again, since it was asked for: then it is not kept.
    """
    if is_lacking(tx.connection, stored.content_hash):
        write_text(tx.connection, stored)
    forget_lacking(tx.connection, [item])


def _without_texts(entry: Entry) -> Iterator[tuple[int, bytes]]:
    """Dates and hashes of messages that come without texts, which are to be here already."""
    for change in entry.changes:
        if isinstance(change, Merge):
            yield from ((row.received_ms, row.content_hash) for row in change.rows)
        elif isinstance(change, MailAdd) and change.copied:
            yield change.received_ms, change.content_hash
