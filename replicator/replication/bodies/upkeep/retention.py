"""Forgets expunged mail after `content.keep_expunged`, then removes bodies that no message refers to any more.

A round runs in slices, between which clients get their turn; `deletion_candidates` explains why a round can never
remove a body that is needed. The next round finishes what a failing disk or a shutdown interrupted. At longer intervals
orphaned bodies are found (`store.gc.orphaned_bodies`); they are then kept and forgotten like expunged mail.

The clock is followed only while it advances steadily: a clock that jumps ahead must not expire everything at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio

from replicator.errors import MailError
from replicator.replication import timing
from replicator.store.attachments.construction import Holding
from replicator.store.bodies import deletion_candidates
from replicator.store.bodies.deletion_candidates import Removed
from replicator.store.db.transaction import Transaction
from replicator.store.gc import body_references, expunged, orphaned_bodies
from replicator.store.gc.body_references import Key, ReferenceScan, ReferenceSlice
from replicator.store.store import Reader, Store

log = logging.getLogger(__name__)

ROUNDS = 10  # rounds per retention time, so mail stays at most one interval longer
FORGET_AT_ONCE = 500  # messages per turn of the writer: some milliseconds
REMOVE_AT_ONCE, REMOVE_BYTES = 200, 4 << 20  # bodies per turn of the writer, and their size on disk
KEEP_AT_ONCE = 1000  # orphaned bodies per turn of the writer
DAY_MS = 86_400_000
FOLLOWED = 24  # a clock that jumps ahead is followed at most this many times faster than real time


class Retention:
    """The expiry of expunged mail and orphaned bodies. Belongs to the event loop.

    `keep_s` is `content.keep_expunged`; `let_go` releases the holdings of removed bodies.
    """

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
        self._believed: tuple[float, int] | None = None  # event loop time, and the wall clock in ms assumed then

    async def run(self) -> None:
        """Run rounds until cancelled."""
        every_s = max(timing.RETENTION_MOST_S, min(timing.RETENTION_UNNAMED_EVERY_S, self._keep_s))
        unnamed_at = trio.current_time() + timing.RETENTION_MOST_S
        while True:
            await trio.sleep(max(timing.RETENTION_LEAST_S, min(timing.RETENTION_MOST_S, self._keep_s / ROUNDS)))
            try:
                await self.expire()
                if trio.current_time() >= unnamed_at:
                    await self.keep_unnamed()
                    unnamed_at = trio.current_time() + every_s
            except MailError as error:
                log.warning("cannot remove expired mail now, trying again later: %s", error)

    async def expire(self) -> None:
        """Run one round. Raises MailError."""
        before_ms = await self._now_ms() - int(self._keep_s * 1000)
        if not await self._store.read(partial(deletion_candidates.is_any_expired, before_ms=before_ms)):
            return
        messages = await self._forget(before_ms)
        async with self._store.reader() as reader:
            for look in body_references.LOOKS:
                await self._spare_named(reader, look)
        bodies = await self._remove()
        log.info("permanently removed %d expunged messages and %d bodies", messages, bodies)

    async def keep_unnamed(self) -> None:
        """Begin the retention of orphaned bodies, as for expunged mail. Raises MailError."""
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
                    log.info(
                        "%d bodies belong to no message; they are kept for `content.keep_expunged` and then removed",
                        len(found),
                    )
                await _rest(began)

    async def _now_ms(self) -> int:
        """Return the assumed wall clock in ms. Raises MailError."""
        now, wall_ms = trio.current_time(), self._clock_ms()
        if self._believed is None:  # after weeks off, the node catches up gradually
            newest_ms = await self._store.read(expunged.newest_ms)
            known_ms = wall_ms if newest_ms is None else newest_ms + DAY_MS
        else:
            known_ms = self._believed[1] + int((now - self._believed[0]) * 1000 * FOLLOWED)
        if known_ms < wall_ms - DAY_MS:
            ahead_h = (wall_ms - known_ms) // 3_600_000
            log.warning(
                "the clock is %d hours ahead of the time last known here; the removal of expunged"
                " mail catches up gradually",
                ahead_h,
            )
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

    async def _spare_named(self, reader: Reader, look: ReferenceScan) -> None:
        after: Key | None = body_references.FIRST
        while after is not None:
            began = trio.current_time()
            part: ReferenceSlice = await reader.read(partial(look, after=after))
            if part.found:
                await self._store.write(partial(_spare, found=part.found))
            after = part.after
            await _rest(began)

    async def _remove(self) -> int:
        total, began = 0, trio.current_time()
        while (removed := await self._store.write(_remove)).bodies:
            total += removed.bodies
            await self._let_go(removed.holdings)  # a scrub finds holdings that a shutdown here leaves
            await _rest(began)
            began = trio.current_time()
        return total


async def _rest(began: float) -> None:
    """Rest for as long as the last slice took, so that clients come first."""
    await trio.sleep(max(timing.RETENTION_REST_S, trio.current_time() - began))


def _remove(tx: Transaction) -> Removed:
    return deletion_candidates.remove(tx.connection, REMOVE_AT_ONCE, REMOVE_BYTES)


def _spare(tx: Transaction, found: set[bytes]) -> None:
    deletion_candidates.spare(tx.connection, found)


def _keep(tx: Transaction, hashes: list[bytes], now_ms: int) -> None:
    orphaned_bodies.keep(tx.connection, hashes, now_ms)
