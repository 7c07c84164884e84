"""Parts that a damaged database has where no hash leads: under the names of their holders (`Holding.kept`).

Nothing but that database tells where they are. What is found is copied, so that the old database stays good until the
new one is whole; what it leaves then the node's next sweep removes.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio

from replicator.environment import ThreadRunner
from replicator.errors import ContentUnavailableError
from replicator.replication.bodies.attachments import PartStore
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.repair.damaged_database import DamagedDatabase


class KeptAttachments:
    """Belongs to the event loop."""

    def __init__(self, damaged: DamagedDatabase, parts: PartStore, run_in_thread: ThreadRunner) -> None:
        self._damaged = damaged
        self._parts = parts
        self._run_in_thread = run_in_thread
        self._turn = trio.Lock()  # the database is for one thread at a time

    async def chunk(self, attached: Attached, number: int) -> bytes | None:
        """See `Source`."""
        async with self._turn:
            kept = await self._run_in_thread(partial(self._damaged.keepers, attached.hash))
        for holding in kept:
            with suppress(ContentUnavailableError):
                return await self._parts.own_chunk(attached, holding, number)
        return None
