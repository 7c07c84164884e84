"""The size of the log, kept current without reading the log again."""

from __future__ import annotations

from functools import partial

import trio

from replicator.store.db.transaction import Commit
from replicator.store.log import entry_removal
from replicator.store.store import Store


class LogSize:
    """Size of the log in bytes. Belongs to the event loop. Bodies are not counted: they stay when entries leave."""

    def __init__(self, store: Store) -> None:
        self.size_bytes = 0  # of all entries
        self.grown_bytes = 0  # of entries after the position given to `measure`, or since `rest`
        self._store = store
        self._is_right = False
        store.listeners.append(self._note_commit)

    async def measure(self, since: int) -> None:
        """Recount both sizes if entries have left the log; `since` is the position at which the last round began.

        Reads the log in slices. Raises DatabaseFailedError.
        """
        if self._is_right:
            return
        self._is_right = True
        end = self._store.tail.end
        self.size_bytes = self.grown_bytes = 0
        try:
            self.grown_bytes += await self._sum(since, end)
            self.size_bytes += await self._sum(0, end)
        except BaseException:
            self._is_right = False
            raise

    def rest(self, grown_bytes: int) -> None:
        """Subtract growth that checkpoints include by now."""
        self.grown_bytes -= grown_bytes

    async def _sum(self, after: int, end: int) -> int:
        total = 0
        at: int | None = after
        while at is not None:
            part, at = await self._store.read(partial(entry_removal.measure, after=at, upto=end))
            total += part.size_bytes
            await trio.lowlevel.checkpoint()
        return total

    def _note_commit(self, commit: Commit) -> None:
        grown = sum(item.entry_bytes + entry_removal.ROW_BYTES for item in commit.logged)
        self.size_bytes += grown
        self.grown_bytes += grown
        if commit.collected:
            self._is_right = False
