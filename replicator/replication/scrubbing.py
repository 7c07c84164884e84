"""`replicator scrub`: all texts against their hashes; what is damaged or missing comes from other nodes."""

from __future__ import annotations

from functools import partial

from replicator.replication.inspection import SUSPECTS_MAX, Inspection, advising
from replicator.replication.tasks import TaskError
from replicator.replication.texts import Texts
from replicator.store import sweeps
from replicator.store.store import Store
from replicator.store.sweeps import Slice
from replicator.tasks import CheckStatus, ScrubOptions


class Scrub:
    """See `Job`."""

    def __init__(self, options: ScrubOptions, store: Store, texts: Texts) -> None:
        self.status = CheckStatus(task="scrub", rate=options.rate, repair=True)
        self._store = store
        self._texts = texts

    async def run(self) -> None:
        """Read every text; then see whose messages those are that are damaged, or missing."""
        with advising():
            async with self._store.reader() as reader:
                work = Inspection(self.status, self._store, self._texts.heal, reader)
                _, messages, contents = await reader.read(sweeps.sizes)
                self.status.total = contents + messages
                suspects = await self._damaged_texts(work)
                await work.sweep_rows(suspects)
                await work.heal_rest(suspects)

    async def _damaged_texts(self, work: Inspection) -> set[bytes]:
        found: set[bytes] = set()
        at: int | None = 0
        while at is not None:
            part: Slice[int, bytes] = await work.reader.read(partial(sweeps.damaged_texts, after=at))
            found.update(part.found)
            if len(found) > SUSPECTS_MAX:
                raise TaskError(f"more than {SUSPECTS_MAX} texts are damaged")
            self.status.contents += part.size
            await work.pace(part.size)
            at = part.after
        return found
