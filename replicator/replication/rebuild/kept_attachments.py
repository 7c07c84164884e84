"""Attachments that only a damaged database leads to: those stored under their holders' names (`Holding.kept`).

They are copied, so that the old database stays intact until the new one is complete; the node's next sweep then removes
the originals.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio

from replicator.environment import ThreadRunner
from replicator.errors import ContentUnavailableError
from replicator.replication.bodies.attachments import NodeAttachments
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.repair.damaged_database import DamagedDatabase


class KeptAttachments:
    """The kept attachments of a damaged database. Belongs to the event loop."""

    def __init__(self, damaged: DamagedDatabase, parts: NodeAttachments, run_in_thread: ThreadRunner) -> None:
        self._damaged = damaged
        self._parts = parts
        self._run_in_thread = run_in_thread
        self._turn = trio.Lock()  # one thread at a time may use the database

    async def chunk(self, attached: Attached, number: int) -> bytes | None:
        """Return a chunk; see `Source`."""
        async with self._turn:
            kept = await self._run_in_thread(partial(self._damaged.keepers, attached.hash))
        for holding in kept:
            with suppress(ContentUnavailableError):
                return await self._parts.own_chunk(attached, holding, number)
        return None
