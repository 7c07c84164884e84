"""Outlines of this node's bodies: one task makes them shortly after a body has arrived (design section 6).

It looks at all bodies in their order of arrival, whichever way they came, and at those whose outline is of an earlier
version, in the node's spare time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

import trio

from replicator.errors import ContentUnavailableError, MailError
from replicator.mail.mailstore import Outliner, read_begin
from replicator.mime.skeleton import Gap, Skeleton
from replicator.replication import timing
from replicator.replication.bodies.upkeep.spare_time import SpareTime
from replicator.runtime.environment import ThreadRunner
from replicator.store.bodies.body_lists import ListedBody
from replicator.store.bodies.body_reader import OpenBody, skeleton_of
from replicator.store.bodies.outline_rows import old_count, unoutlined, write_outlines
from replicator.store.db.queries import Connection
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store

log = logging.getLogger(__name__)

BODIES_AT_ONCE, BYTES_AT_ONCE = 64, 256 << 10  # bodies of a slice, and their size on disk: some 30 ms of work


class Outlines:
    """The task that makes outlines. Belongs to the event loop. `open_body`: see `Bodies.open`."""

    def __init__(self, store: Store, run_in_thread: ThreadRunner, open_body: OpenBody, spare_time: SpareTime) -> None:
        self._store = store
        self._run_in_thread = run_in_thread
        self._open_body = open_body
        self._spare_time = spare_time
        self._version: int | None = None  # of the outlines that are being made

    async def run(self, outliner: Outliner) -> None:
        """Make outlines until cancelled."""
        self._version = outliner.version
        while True:
            end = self._store.tail.end
            try:
                await self.catch_up(outliner)
            except MailError as error:  # without an outline, answers are made from the body
                log.warning("cannot make outlines of messages now, trying again later: %s", error)
                await trio.sleep(timing.OUTLINES_EVERY_S)
            if end == self._store.tail.end:
                with trio.move_on_after(timing.OUTLINES_EVERY_S):  # backfill brings bodies without entries
                    await self._store.tail.grown()

    def outdated(self, connection: Connection) -> int:
        """Return the number of bodies that are to be looked at anew, because their outline is of an earlier version."""
        return 0 if self._version is None else old_count(connection, self._version)

    async def catch_up(self, outliner: Outliner) -> None:
        """Make outlines until no body lacks one of the present version. Raises MailError."""
        look = partial(unoutlined, version=outliner.version, bodies=BODIES_AT_ONCE, size_bytes=BYTES_AT_ONCE)
        while True:
            async with self._spare_time.turn():
                if not (some := await self._store.read(look)):
                    return
                skeletons, wanted = await self._run_in_thread(partial(_skeletons, outliner, some))
                for content_hash, gap in wanted.items():
                    skeletons[content_hash] = await self._with_begin(content_hash, gap) or skeletons[content_hash]
                made = await self._run_in_thread(partial(_made, outliner, skeletons))
                await self._store.write(partial(_write, made=made, version=outliner.version))

    async def _with_begin(self, content_hash: bytes, gap: Gap) -> Skeleton | None:
        """Return the body's skeleton with the beginning of a gap; None if that cannot be read now."""
        with trio.move_on_after(timing.BODIES_PATIENCE_S), suppress(ContentUnavailableError):
            body = await self._open_body(content_hash)
            return None if body is None else await read_begin(body, gap)
        return None


def _skeletons(outliner: Outliner, some: Iterable[ListedBody]) -> tuple[dict[bytes, Skeleton | None], dict[bytes, Gap]]:
    """Return the bodies' skeletons, and the gaps whose beginnings are wanted, by content hash."""
    found = {body.content_hash: skeleton_of(body.message) for body in some}
    wanted = ((content_hash, outliner.wanted(one)) for content_hash, one in found.items() if one is not None)
    return found, {content_hash: gap for content_hash, gap in wanted if gap is not None}


def _made(outliner: Outliner, skeletons: Mapping[bytes, Skeleton | None]) -> dict[bytes, bytes]:
    return {content_hash: b"" if one is None else outliner.outline(one) for content_hash, one in skeletons.items()}


def _write(tx: Transaction, made: dict[bytes, bytes], version: int) -> None:
    write_outlines(tx.connection, made, version)
