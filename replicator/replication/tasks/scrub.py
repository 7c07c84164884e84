"""`replicator scrub`: checks all bodies and attachments against their hashes, and repairs what crashes left behind.

Damaged or missing content is fetched from other nodes.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from replicator.replication.bodies import Bodies
from replicator.replication.tasks.inspection import FROM_PEER, SUSPECTS_MAX, Inspection, advising
from replicator.replication.tasks.runner import TaskError
from replicator.store.bodies.attachment_references import body_of, large_bodies
from replicator.store.bodies.body_rows import is_here
from replicator.store.repair import table_check
from replicator.store.repair.mailbox_check import Defect
from replicator.store.repair.table_check import TableSlice
from replicator.store.store import Store
from replicator.tasks import CheckStatus, ScrubOptions

BODIES_AT_ONCE = 1000  # bodies with attachments per read of their hashes


class ScrubTask:
    """The job of `replicator scrub`. See `Job`."""

    def __init__(self, options: ScrubOptions, store: Store, bodies: Bodies) -> None:
        self.status = CheckStatus(task="scrub", rate=options.rate, repair=True)
        self._store = store
        self._bodies = bodies
        self._whole: set[tuple[bytes, str]] = set()  # attachments checked, by place: many bodies may share them

    async def run(self) -> None:
        """Read every body; then find the messages with damaged or missing bodies."""
        with advising():
            async with self._store.reader() as reader:
                work = Inspection(self.status, self._store, self._bodies.heal, reader)
                _, messages, contents = await reader.read(table_check.sizes)
                self.status.total = contents + messages
                suspects = await self._damaged_bodies(work)
                await self._check_attachments(work)
                await self._sweep(work)  # the sweep also restores other holders of healed attachments
                await work.sweep_rows(suspects)
                await work.heal_rest(suspects)
                await work.name_messages()

    async def _sweep(self, work: Inspection) -> None:
        """Repair what crashes left among the attachments."""
        try:
            async with aclosing(self._bodies.swept(work.reader)) as slices:
                async for part in slices:
                    for finding in part.found:
                        if finding.holding is None and finding.mended:
                            self.status.tidied += 1
                        elif finding.holding is not None and finding.mended:  # lost content is reported with its body
                            content_hash = await work.reader.read(partial(body_of, holding=finding.holding))
                            what = f"{finding.kind}: {finding.place}"
                            await work.note(Defect("attachment", what, None, content_hash=content_hash), "mended")
                    await work.pace(part.size)
        except OSError as error:
            raise TaskError(f"cannot read the attachments: {error}") from error

    async def _check_attachments(self, work: Inspection) -> None:
        """Check each attachment once against its hashes, and fetch damaged or missing ones from other nodes."""
        after = 0
        while some := await work.reader.read(partial(large_bodies, after=after, limit=BODIES_AT_ONCE)):
            after = some[-1][0]
            for _, content_hash in some:
                await self._check_attachments_of(work, content_hash)

    async def _check_attachments_of(self, work: Inspection, content_hash: bytes) -> None:
        attachments = await self._bodies.attachments_of(content_hash)
        if attachments is None:
            await self._heal(work, content_hash, "its recipe is damaged", healed=False)
            return
        for attached, holding in attachments:
            place = (attached.hash, holding.holder if holding is not None and holding.kept else "")
            if place in self._whole:
                continue
            if not await self._bodies.is_whole(attached, holding):
                is_mended = holding is not None and await self._bodies.heal_attachment(attached, holding)
                what = "a part of its body is missing or damaged"
                if not await self._heal(work, content_hash, what, healed=is_mended):
                    return
            if len(self._whole) >= SUSPECTS_MAX:
                self._whole.clear()
            self._whole.add(place)
            await work.pace(attached.chunk_count)

    async def _heal(self, work: Inspection, content_hash: bytes, what: str, *, healed: bool) -> bool:
        """Report damage to a body; return True if it is whole now, if necessary after fetching it from another node."""
        if not healed and not await work.reader.read(partial(is_here, content_hash=content_hash)):
            return False  # the body was removed meanwhile
        healed = healed or await self._bodies.heal(content_hash)
        damage = Defect("content", what, None, content_hash=content_hash)
        await work.note(damage, FROM_PEER if healed else None)
        return healed

    async def _damaged_bodies(self, work: Inspection) -> set[bytes]:
        found: set[bytes] = set()
        at: int | None = 0
        while at is not None:
            part: TableSlice[int, bytes] = await work.reader.read(partial(table_check.damaged_bodies, after=at))
            found.update(part.found)
            if len(found) > SUSPECTS_MAX:
                raise TaskError(f"more than {SUSPECTS_MAX} bodies are damaged")
            self.status.contents += part.size
            await work.pace(part.size)
            at = part.after
        return found
