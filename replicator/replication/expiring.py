"""Forgetting expunged mail after `content.keep_expunged`, and then removing the texts that nobody has any more.

A round goes in slices, between which clients have their turns; `replicator.store.doomed` says why none of it can take a
text that is needed. What a round cannot finish, because the disk does not work or the node ends, the next one does.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from replicator.errors import MailError
from replicator.store import doomed, named
from replicator.store.attachments.construction import Holding
from replicator.store.doomed import Removed
from replicator.store.named import Key, Look, Slice
from replicator.store.store import Reader, Store
from replicator.store.transaction import Transaction

log = logging.getLogger(__name__)

LEAST_S, MOST_S = 10.0, 3600.0  # from one round to the next
ROUNDS = 10  # within the time for which mail is kept: so much longer it may stay
FORGET_AT_ONCE = 500  # messages of one turn of the writer: some milliseconds
REMOVE_AT_ONCE, REMOVE_BYTES = 200, 4 << 20  # texts, and what they take on disk


class Expirer:
    """Belongs to the event loop. `keep_s` is `content.keep_expunged`; `let_go` is of what held parts of texts."""

    def __init__(
        self,
        store: Store,
        keep_s: float,
        clock_ms: Callable[[], int],
        *,
        let_go: Callable[[Iterable[Holding]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._keep_s = keep_s
        self._clock_ms = clock_ms
        self._let_go = let_go

    async def run(self) -> None:
        """Round by round, until cancelled."""
        while True:
            await trio.sleep(max(LEAST_S, min(MOST_S, self._keep_s / ROUNDS)))
            try:
                await self.expire()
            except (MailError, sqlite3.Error) as error:
                log.warning("expunged mail stays, and is to be removed later: %s", error)

    async def expire(self) -> None:
        """One round. Raises MailError, sqlite3.Error."""
        before_ms = self._clock_ms() - int(self._keep_s * 1000)
        if not await self._store.read(partial(doomed.is_any_expired, before_ms=before_ms)):
            return
        messages = await self._forget(before_ms)
        async with self._store.reader() as reader:
            for look in named.LOOKS:
                await self._spare_named(reader, look)
        texts = await self._remove()
        log.info("%d expunged messages are forgotten, %d texts removed", messages, texts)

    async def _forget(self, before_ms: int) -> int:
        total, count = 0, FORGET_AT_ONCE
        while count == FORGET_AT_ONCE:
            count = await self._store.write(lambda tx: doomed.doom_expired(tx.connection, before_ms, FORGET_AT_ONCE))
            total += count
        return total

    async def _spare_named(self, reader: Reader, look: Look) -> None:
        after: Key | None = named.FIRST
        while after is not None:
            part: Slice = await reader.read(partial(look, after=after))
            if part.found:
                await self._store.write(partial(_spare, found=part.found))
            after = part.after

    async def _remove(self) -> int:
        total = 0
        while (removed := await self._store.write(_remove)).texts:
            total += removed.texts
            await self._let_go(removed.holdings)  # what an end in between leaves is found by a scrub
        return total


def _remove(tx: Transaction) -> Removed:
    return doomed.remove(tx.connection, REMOVE_AT_ONCE, REMOVE_BYTES)


def _spare(tx: Transaction, found: set[bytes]) -> None:
    doomed.spare(tx.connection, found)
