"""Attachments that only a damaged database leads to: those stored under their holders' names (`Holding.kept`).

They are copied, so that the old database stays intact until the new one is complete; the node's next sweep then removes
the originals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from replicator.runtime.environment import ThreadRunner
from replicator.store.attachments.construction import Holding
from replicator.store.repair.damaged_database import DamagedDatabase


class KeptAttachments:
    """The kept attachments of a damaged database. Belongs to the event loop."""

    def __init__(self, damaged: DamagedDatabase, run_in_thread: ThreadRunner) -> None:
        self._damaged = damaged
        self._run_in_thread = run_in_thread
        self._turn = trio.Lock()  # one thread at a time may use the database

    async def keepers(self, attachment_hash: bytes) -> Sequence[Holding]:
        """Return where the attachment is kept; see `bodies.Keepers`."""
        async with self._turn:
            return await self._run_in_thread(partial(self._damaged.keepers, attachment_hash))
