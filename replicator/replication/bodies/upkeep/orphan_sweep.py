"""Repairs what crashes left among the attachments: some time after the node's start, then daily.

The sweep is slow, since only disk space depends on it; a scrub does the same at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass

import trio

from replicator.errors import MailError
from replicator.replication import timing
from replicator.store.attachments.sweep import SweepSlice, sweep
from replicator.store.bodies.attachment_references import RecordedHolders
from replicator.store.db.queries import Connection
from replicator.store.store import Reader, Store

log = logging.getLogger(__name__)

RATE = 1000.0  # attachments and holders a second


@dataclass(frozen=True, slots=True)
class AttachmentTotals:
    """Attachments that this node's bodies refer to, each counted once. Other nodes may share them."""

    attachments: int
    size_bytes: int


class OrphanSweep:
    """The periodic sweep of the attachment store.

    `held` is the count of the last complete sweep or scrub; None: no sweep yet.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.held: AttachmentTotals | None = None

    async def run(self) -> None:
        """Sweep at intervals, until cancelled.

        Runs as one task of a running node, but not during a rebuild, when the old database's attachments are not
        recorded yet.
        """
        await trio.sleep(timing.ORPHAN_SWEEP_FIRST_S)
        while True:
            try:
                mended = await self._sweep()
            except (MailError, OSError) as error:
                log.warning("cannot look for orphaned attachments: %s", error)
            else:
                if mended:
                    log.info("cleaned up %d leftovers of crashes among the attachments", mended)
            await trio.sleep(timing.ORPHAN_SWEEP_EVERY_S)

    async def _sweep(self) -> int:
        mended = 0
        async with self._store.reader() as reader, aclosing(self.swept(reader)) as slices:
            async for part in slices:
                mended += sum(finding.mended for finding in part.found)
                await trio.sleep(max(timing.ORPHAN_SWEEP_REST_S, part.size / RATE))
        return mended

    async def swept(self, reader: Reader) -> AsyncGenerator[SweepSlice, None]:
        """Yield the slices of one sweep, and set `held` at its end. Raises OSError, MailError."""
        slices: list[
            Iterator[SweepSlice]
        ] = []  # created in the reader's thread, since the sweep reads by that connection

        def next_slice(connection: Connection) -> SweepSlice | None:
            if not slices:
                slices.append(sweep(self._store.attachments, RecordedHolders(connection), repair=True))
            return next(slices[0], None)

        attachments = size_bytes = 0
        while (part := await reader.read(next_slice)) is not None:
            attachments += part.attachments
            size_bytes += part.size_bytes
            yield part
        self.held = AttachmentTotals(attachments, size_bytes)
