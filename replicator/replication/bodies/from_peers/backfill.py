"""Backfills bodies of messages whose rows arrived without log entries, newest first, from neighbours.

Small bodies are fetched many at a time; then the others, and those that did not come so, one by one.
A body that is still missing when a client reads it is fetched then. The list of missing bodies is on disk, so the
backfill resumes after a restart. Bodies that could not be fetched are retried at intervals, not whenever a new one is
noted: a node may lack many bodies that are lost, and its users copy messages all the time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import trio

from replicator.errors import MailError
from replicator.replication import timing
from replicator.replication.bodies.from_peers.small_fetch import TOGETHER, Keep
from replicator.replication.parallel import in_turns
from replicator.runtime.signals import Signal
from replicator.store.bodies.body_rows import (
    DOUBTED_MS,
    StoredBody,
    doubt_lacking,
    forget_lacking,
    is_here,
    is_lacking,
    lacking,
    lacking_count,
    lacking_in_vain,
    still_lacking,
    those_here,
    write_body,
)
from replicator.store.db.transaction import Commit, Transaction
from replicator.store.store import Store
from resync.entry import Entry, MailAdd, Merge

AT_ONCE = 16  # bodies fetched in parallel, one by one
TOGETHER_AT_ONCE = 4  # fetches of many small bodies in parallel
SLICE = 1024  # bodies per read of the list
NOTED = 100_000  # bodies noted between two looks, some 20 MB; a full look finds any more

Lacking: TypeAlias = tuple[int, bytes]
"""A missing body: the date of its message, in ms, and its hash."""

FetchSmall: TypeAlias = Callable[[Sequence[bytes], Keep], Awaitable[None]]
"""A function that fetches those bodies of these hashes that are small, and has them kept as they come."""

WriteBody: TypeAlias = Callable[[StoredBody, Transaction], None]
"""A function that writes a fetched body in the writer's transaction."""


class Backfill:
    """A background fetch of missing bodies. Belongs to the event loop. For `fetch`, see `Bodies.fetch`."""

    def __init__(
        self, store: Store, fetch: Callable[[bytes, WriteBody], Awaitable[bool]], fetch_small: FetchSmall
    ) -> None:
        self._store = store
        self._fetch = fetch
        self._fetch_small = fetch_small
        self._wanted = Signal()
        self._noted = set[Lacking]()  # bodies that became missing since the last look
        self._all_at = -math.inf  # time of the next full look; math.inf: nothing was missing
        self.lacking = 0  # missing bodies as of the last look; one of several messages may count more than once
        store.listeners.append(self._note_commit)

    async def run(self) -> None:
        """Fetch missing bodies until cancelled."""
        while True:
            with trio.move_on_at(self._all_at):
                await self._wanted.wait()
            self._wanted.clear()
            await trio.sleep(timing.BACKFILL_PATIENCE_S)
            with suppress(MailError):
                await self._look()

    async def _look(self) -> None:
        """Fetch all missing bodies; before a full look is due, only those noted since the last look."""
        noted, self._noted = self._noted, set()
        if trio.current_time() < self._all_at < math.inf:
            await self._look_for_noted(sorted(noted, reverse=True))
            return
        self._all_at = trio.current_time() + timing.BACKFILL_RETRY_S  # in case this look fails
        await self._look_for_all()
        if not self.lacking:
            self._all_at = math.inf
            return
        await self._forget_in_vain()  # scans all messages, hence only after a full look
        self._all_at = trio.current_time() + timing.BACKFILL_RETRY_S

    async def _look_for_noted(self, noted: list[Lacking]) -> None:
        for start in range(0, len(noted), SLICE):
            some = noted[start : start + SLICE]
            await self._forget(await self._fetched(await self._store.read(partial(still_lacking, noted=some))))

    async def _look_for_all(self) -> None:
        self.lacking = await self._store.read(lacking_count)
        after: Lacking | None = None
        while some := await self._store.read(partial(lacking, before=after, count=SLICE)):
            after = some[-1]
            await self._forget(await self._fetched(some))

    async def _forget_in_vain(self) -> None:
        """Forget bodies that no message refers to.

        They are marked as doubted and looked for once more first (`doubt_lacking`).
        """
        in_vain = await self._store.read(lacking_in_vain)
        if not in_vain:
            return
        await self._store.write(lambda tx: doubt_lacking(tx.connection, in_vain))
        doubted = [item for item in await self._store.read(lacking_in_vain) if item[0] == DOUBTED_MS]
        await self._store.write(lambda tx: forget_lacking(tx.connection, doubted))
        self.lacking = await self._store.read(lacking_count)

    async def _forget(self, found: list[Lacking]) -> None:
        """Forget those of these bodies that are still here: one may have been removed, and noted anew."""
        if found:
            await self._store.write(partial(_forget_those_here, items=found))
        self.lacking = await self._store.read(lacking_count)

    async def _fetched(self, some: list[Lacking]) -> list[Lacking]:
        """Fetch these bodies; return those that are here now."""
        await in_turns(
            self._fetch_together, [some[at : at + TOGETHER] for at in range(0, len(some), TOGETHER)], TOGETHER_AT_ONCE
        )
        here = await self._here([content_hash for _, content_hash in some])
        found = [item for item in some if item[1] in here]

        async def fetch(item: Lacking) -> None:
            if await self._is_here_now(item):
                found.append(item)

        await in_turns(fetch, [item for item in some if item[1] not in here], AT_ONCE)
        return found

    async def _fetch_together(self, some: list[Lacking]) -> None:
        items = {item[1]: item for item in some}
        here = await self._here(items)

        async def keep(bodies: list[StoredBody]) -> None:
            await self._store.write(partial(_keep_all, bodies, items=items))

        with suppress(MailError):
            await self._fetch_small([content_hash for content_hash in items if content_hash not in here], keep)

    async def _here(self, hashes: Iterable[bytes]) -> set[bytes]:
        """Return those of these bodies that are here; none if the database cannot tell of one: each is tried alone."""
        with suppress(MailError):
            return await self._store.read(partial(those_here, hashes=hashes))
        return set()

    async def _is_here_now(self, item: Lacking) -> bool:
        content_hash = item[1]
        try:
            if await self._store.read(partial(is_here, content_hash=content_hash)):
                return True
            return await self._fetch(content_hash, partial(_keep, item=item))
        except MailError:
            pass
        return False

    def _note_commit(self, commit: Commit) -> None:
        for entry in commit.applied:
            if len(self._noted) < NOTED:
                self._noted.update(_without_bodies(entry))
        if self._noted:
            self._wanted.set()


def _forget_those_here(tx: Transaction, items: list[Lacking]) -> None:
    forget_lacking(tx.connection, [item for item in items if is_here(tx.connection, item[1])])


def _keep_all(bodies: list[StoredBody], tx: Transaction, items: dict[bytes, Lacking]) -> None:
    """Write fetched bodies. What more is noted of the same bodies is forgotten with the next look."""
    for stored in bodies:
        _keep(stored, tx, items[stored.content_hash])


def _keep(stored: StoredBody, tx: Transaction, item: Lacking) -> None:
    """Write a fetched body, and count it in the same transaction.

    Counting at once shows progress while other bodies of the same look take long. The body is not kept if its message
    arrived with it and was forgotten again since the request.
    """
    if is_lacking(tx.connection, stored.content_hash):
        write_body(tx.connection, stored)
    forget_lacking(tx.connection, [item])


def _without_bodies(entry: Entry) -> Iterator[tuple[int, bytes]]:
    """Yield dates and hashes of messages whose change brings no body, since the body should be here already."""
    for change in entry.changes:
        if isinstance(change, Merge):
            yield from ((row.received_ms, row.content_hash) for row in change.rows)
        elif isinstance(change, MailAdd) and change.copied:
            yield change.received_ms, change.content_hash
