"""Forgetting expunged mail after `content.keep_expunged`, and then removing the texts that nobody has any more.

A round goes in slices, between which clients have their turns; `deletion_candidates` says why none of it can take a
text that is needed. What a round cannot finish, because the disk does not work or the node ends, the next one does.
Now and then orphaned texts are looked for (`store.gc.orphaned_bodies`), and then kept and forgotten likewise.

The time is believed only as far as it goes on steadily: a clock that jumps ahead must not forget everything at once.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from replicator.errors import MailError
from replicator.store.attachments.construction import Holding
from replicator.store.bodies import deletion_candidates
from replicator.store.bodies.deletion_candidates import Removed
from replicator.store.db.transaction import Transaction
from replicator.store.gc import body_references, expunged, orphaned_bodies
from replicator.store.gc.body_references import Key, Look, Slice
from replicator.store.store import Reader, Store

log = logging.getLogger(__name__)

LEAST_S, MOST_S = 10.0, 3600.0  # from one round to the next
ROUNDS = 10  # within the time for which mail is kept: so much longer it may stay
FORGET_AT_ONCE = 500  # messages of one turn of the writer: some milliseconds
REMOVE_AT_ONCE, REMOVE_BYTES = 200, 4 << 20  # texts, and what they take on disk
REST_S = 0.02  # at least, between two slices; else as long as the last one took
UNNAMED_EVERY_S = 86_400.0  # at most, or as long as mail is kept; at least `MOST_S`
KEEP_AT_ONCE = 1000  # texts that nothing names, of one turn of the writer
DAY_MS = 86_400_000
FOLLOWED = 24  # times as fast as time goes by: so a clock is followed that jumps ahead


class Retention:
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
        self._believed: tuple[float, int] | None = None  # a time of the loop, and what the clock was believed to be

    async def run(self) -> None:
        """Round by round, until cancelled."""
        every_s = max(MOST_S, min(UNNAMED_EVERY_S, self._keep_s))
        unnamed_at = trio.current_time() + MOST_S
        while True:
            await trio.sleep(max(LEAST_S, min(MOST_S, self._keep_s / ROUNDS)))
            try:
                await self.expire()
                if trio.current_time() >= unnamed_at:
                    await self.keep_unnamed()
                    unnamed_at = trio.current_time() + every_s
            except (MailError, sqlite3.Error) as error:
                log.warning("expunged mail stays, and is to be removed later: %s", error)

    async def expire(self) -> None:
        """One round. Raises MailError, sqlite3.Error."""
        before_ms = await self._now_ms() - int(self._keep_s * 1000)
        if not await self._store.read(partial(deletion_candidates.is_any_expired, before_ms=before_ms)):
            return
        messages = await self._forget(before_ms)
        async with self._store.reader() as reader:
            for look in body_references.LOOKS:
                await self._spare_named(reader, look)
        texts = await self._remove()
        log.info("%d expunged messages are forgotten, %d texts removed", messages, texts)

    async def keep_unnamed(self) -> None:
        """Let texts that nothing names be kept as long as expunged mail. Raises MailError, sqlite3.Error."""
        after: bytes | None = b""
        now_ms = await self._now_ms()
        async with self._store.reader() as reader:
            while after is not None:
                began = trio.current_time()
                after, found = await reader.read(partial(orphaned_bodies.unnamed, after=after))
                for start in range(0, len(found), KEEP_AT_ONCE):
                    some = found[start : start + KEEP_AT_ONCE]
                    await self._store.write(partial(_keep, hashes=some, now_ms=now_ms))
                if found:
                    log.info("%d texts that no message has are kept as long as expunged mail", len(found))
                await _rest(began)

    async def _now_ms(self) -> int:
        """What the clock is believed to be. Raises MailError, sqlite3.Error."""
        now, wall_ms = trio.current_time(), self._clock_ms()
        if self._believed is None:  # a node that was off for weeks is followed, too
            newest_ms = await self._store.read(expunged.newest_ms)
            known_ms = wall_ms if newest_ms is None else newest_ms + DAY_MS
        else:
            known_ms = self._believed[1] + int((now - self._believed[0]) * 1000 * FOLLOWED)
        if known_ms < wall_ms - DAY_MS:
            ahead_h = (wall_ms - known_ms) // 3_600_000
            log.warning("the clock is %d hours ahead of what was known here; mail is forgotten slowly", ahead_h)
        self._believed = now, min(wall_ms, known_ms)
        return self._believed[1]

    async def _forget(self, before_ms: int) -> int:
        total, count = 0, FORGET_AT_ONCE
        while count == FORGET_AT_ONCE:
            began = trio.current_time()
            count = await self._store.write(
                lambda tx: deletion_candidates.doom_expired(tx.connection, before_ms, FORGET_AT_ONCE)
            )
            total += count
            await _rest(began)
        return total

    async def _spare_named(self, reader: Reader, look: Look) -> None:
        after: Key | None = body_references.FIRST
        while after is not None:
            began = trio.current_time()
            part: Slice = await reader.read(partial(look, after=after))
            if part.found:
                await self._store.write(partial(_spare, found=part.found))
            after = part.after
            await _rest(began)

    async def _remove(self) -> int:
        total, began = 0, trio.current_time()
        while (removed := await self._store.write(_remove)).texts:
            total += removed.texts
            await self._let_go(removed.holdings)  # what an end in between leaves is found by a scrub
            await _rest(began)
            began = trio.current_time()
        return total


async def _rest(began: float) -> None:
    """Clients come first."""
    await trio.sleep(max(REST_S, trio.current_time() - began))


def _remove(tx: Transaction) -> Removed:
    return deletion_candidates.remove(tx.connection, REMOVE_AT_ONCE, REMOVE_BYTES)


def _spare(tx: Transaction, found: set[bytes]) -> None:
    deletion_candidates.spare(tx.connection, found)


def _keep(tx: Transaction, hashes: list[bytes], now_ms: int) -> None:
    orphaned_bodies.keep(tx.connection, hashes, now_ms)
