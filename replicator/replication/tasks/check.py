"""`replicator check`: compares a running node's state with its log, and its tables with each other."""

from __future__ import annotations

from functools import partial

import trio

from replicator.replication.checkpoints.checkpoint_reader import ReplayBases
from replicator.replication.tasks.inspection import FROM_LOG, SUSPECTS_MAX, HealBody, Inspection, advising
from replicator.replication.tasks.runner import TaskError
from replicator.runtime.environment import Environment
from replicator.store.bodies.attachment_references import lost_attachments
from replicator.store.db.queries import Connection
from replicator.store.log.replay import Base
from replicator.store.repair import table_check
from replicator.store.repair.head_evidence import log_lacks
from replicator.store.repair.mailbox_check import Defect, LogComparison, chain_ids, readable_chain
from replicator.store.repair.row_repair import compare_and_mend, mend
from replicator.store.repair.table_check import TableSlice
from replicator.store.store import Store
from replicator.tasks import CheckOptions, CheckStatus

RECOUNTED = "counted anew"
TRIES = 3  # tries to repair a mailbox that changes meanwhile; after that the writer waits for the repair


class CheckTask:
    """The job of `replicator check`. See `Job`."""

    def __init__(
        self, options: CheckOptions, store: Store, environment: Environment, heal_body: HealBody, bases: ReplayBases
    ) -> None:
        self.status = CheckStatus(task="check", rate=options.rate, repair=options.repair)
        self._store = store
        self._environment = environment
        self._heal_body = heal_body
        self._bases = bases

    async def run(self) -> None:
        """Run the check; see `_Check`."""
        with advising():
            async with self._store.reader() as reader:
                work = Inspection(self.status, self._store, self._heal_body, reader)
                await _Check(work, self._bases).run()


class _Check:
    """A running check."""

    def __init__(self, work: Inspection, bases: ReplayBases) -> None:
        self._work = work
        self._bases = bases
        self._reader = work.reader
        self._status = work.status

    async def run(self) -> None:
        """Compare each mailbox and tree with the log (pass 1), then the tables with each other (pass 2)."""
        entries, messages, _ = await self._reader.read(table_check.sizes)
        self._status.total = entries + 3 * messages
        if lacking := await self._reader.read(log_lacks):
            await self._work.note(
                Defect("log", f"{lacking} entries that had arrived are missing from the log", None), None
            )
        doubted = await self._unseen_chains()
        for chain_id in sorted(doubted):
            await self._compare(chain_id, doubted=True)
        after: bytes | None = None
        while some := await self._reader.read(partial(chain_ids, after=after)):
            after = some[-1]
            for chain_id in some:
                if chain_id not in doubted:
                    await self._compare(chain_id, doubted=False)
        await self._work.mend_strays(await self._reader.read(table_check.strays_of_trees))
        await self._work.sweep_rows()
        await self._sweep_attachments()
        await self._sweep_pointers()
        await self._work.name_messages()
        await self._compare_tally()

    async def _compare_tally(self) -> None:
        """Compare the digest of everything with all mailboxes, unless damage to these is left; then it is right."""
        if self._status.damage.get("chain") and self._status.unrepaired:
            return
        store = self._work.store
        before = store.miscounts
        await store.count(at_leisure=True)
        if store.miscounts > before:
            await self._work.note(Defect("tally", "the digest of everything was not the sum of all", None), RECOUNTED)

    async def _sweep_attachments(self) -> None:
        """Check that attachments exist; a scrub reads their content."""
        after: tuple[bytes, bytes] | None = (b"", b"")
        while after is not None:
            look = partial(lost_attachments, attachments=self._work.store.attachments, after=after)
            size, after, bodies = await self._reader.read(look)
            for content_hash in bodies:
                damage = Defect("content", "a part of its body is missing", None, content_hash=content_hash)
                await self._work.heal_attachments(damage)
            await self._work.pace(size)

    async def _unseen_chains(self) -> set[bytes]:
        found: set[bytes] = set()
        at: int | None = 0
        while at is not None:
            part: TableSlice[int, bytes] = await self._reader.read(partial(table_check.unseen_chains, after=at))
            found.update(part.found)
            if len(found) > SUSPECTS_MAX:
                raise TaskError(f"more than {SUSPECTS_MAX} mailboxes are behind the log")
            await self._work.pace(part.size)
            at = part.after
        return found

    async def _compare(self, chain_id: bytes, *, doubted: bool) -> None:
        """Compare a mailbox with its log, and repair it.

        A suspect is read twice before it counts, and repaired only if it has not changed since.
        """
        self._status.mailboxes += 1
        store, repair = self._work.store, self._status.repair
        mended = False
        comparison = await self._read_both(chain_id, doubted=doubted)
        self._status.unproven += comparison.unproven
        if not comparison.damages:
            return
        for _ in range(TRIES):
            comparison = await self._read_both(chain_id, doubted=doubted)
            mended = repair and await store.write(partial(mend, comparison=comparison))
            if mended or not repair:
                break
        else:
            base = await self._base_of(chain_id)
            comparison = await store.write(partial(compare_and_mend, chain_id=chain_id, base=base, doubted=doubted))
            mended = True
        for damage in comparison.damages:
            await self._work.note(damage, FROM_LOG if mended and damage.can_be_mended else None)

    async def _read_both(self, chain_id: bytes, *, doubted: bool) -> LogComparison:
        base = await self._base_of(chain_id)

        def begin(connection: Connection) -> LogComparison:
            return LogComparison(connection, chain_id, doubted, base)

        comparison = await self._reader.read(begin)
        steps = comparison.steps()
        total = 0
        try:
            while (size := await self._reader.read(lambda _: next(steps, None))) is not None:
                total += size
                await trio.lowlevel.checkpoint()
        finally:
            steps.close()
        self._status.rows += total
        await self._work.pace(total)
        return comparison

    async def _base_of(self, chain_id: bytes) -> Base | None:
        chain = await self._reader.read(partial(readable_chain, chain_id=chain_id))
        return await self._bases.base_of(chain_id, chain.head if chain else None)

    async def _sweep_pointers(self) -> None:
        at: table_check.Key | None = table_check.FIRST
        while at is not None:
            query = partial(table_check.stray_pointers, after=at)
            part: TableSlice[table_check.Key, Defect] = await self._reader.read(query)
            if part.found:
                part = await self._reader.read(query)
            await self._work.mend_strays(part.found)
            self._status.rows += part.size
            await self._work.pace(part.size)
            at = part.after
