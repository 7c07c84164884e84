"""The log's life cycle: starts checkpoint rounds, and removes the entries that checkpoints replace.

A round notes the settled context and ends with a manifest (`checkpoint_writer`). The manifest is pending until every
known node has settled what the checkpoints show, so that no branch can begin before them, or until `log.keep` or
`log.max_size` end the wait. Then it is in force: entries that were settled when the round began leave the log, and
older manifests and checkpoints are deleted (design section 6).

A crash may follow any step: the next start resumes or repeats unfinished work. If the object store fails, the log stays
whole and everything else goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from protocol.values import Context, context_of
from replicator.config import LogConfig
from replicator.errors import MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.checkpoints.checkpoint_writer import CheckpointWriter
from replicator.replication.checkpoints.log_size import LogSize
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStoreError
from replicator.runtime.signals import Signal
from replicator.status import CheckpointStatus
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.catalog import Round
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.db.entry_validation import NamedHead
from replicator.store.log import entry_removal
from replicator.store.store import Store

log = logging.getLogger(__name__)

ROUND_PART = 4  # a round begins when a quarter of what the limits allow has arrived

_ERRORS = (ObjectStoreError, UnreadableError, MailError)
"""Errors that end a round, which is then tried again."""


class KnownNodes(Protocol):
    """The settled contexts of the cluster's nodes."""

    def lacking(self, context: Context) -> Sequence[str]:
        """Return the SIDs of all known nodes, including this one, whose settled context does not cover this context."""
        ...


Forget = Callable[[Context], Awaitable[None]]
"""A function that deletes other copies of the entries up to a context; raises ObjectStoreError."""


@dataclass(slots=True)
class _Demand:
    """An operator's request for a round now."""

    done: trio.Event = field(default_factory=trio.Event)
    error: str | None = None


class LogTruncation:
    """The task that runs checkpoint rounds and truncates the log. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        archive: Archive,
        known: KnownNodes,
        limits: LogConfig,
        environment: Environment,
        *,
        forget: Forget | None = None,
    ) -> None:
        self._store = store
        self._archive = archive
        self._known = known
        self._limits = limits
        self._environment = environment
        self._forget = forget
        self._size = LogSize(store)
        self._checkpoint_writer = CheckpointWriter(store, archive, environment)
        self._demands: list[_Demand] = []
        self._asked = Signal()
        self._is_known = False  # True once the archive's newest manifest is known to be this node's
        self._litter = True  # unlisted objects may remain in the store after a round that failed
        self._newest: Round | None = None
        self._lacking: tuple[str, ...] = ()
        self._error: str | None = None

    # ---- from outside

    def checkpoint_status(self) -> CheckpointStatus:
        """Return the present status."""
        newest = self._newest
        return CheckpointStatus(
            made_ms=newest.made_ms if newest else None,
            mailboxes=newest.heads if newest else 0,
            in_force=newest is not None and newest.in_force,
            waits_for=self._lacking,
            saved=self._checkpoint_writer.saved,
            saved_bytes=self._checkpoint_writer.saved_bytes,
            log_bytes=self._size.size_bytes,
            error=self._error,
        )

    @property
    def unsaved_bytes(self) -> int:
        """Size of the log's entries that came after the last round began, without bodies."""
        return self._size.grown_bytes

    async def checkpoint_now(self) -> CheckpointStatus:
        """Run a round, unless nothing has changed since the last one; return the status after it.

        Raises UnavailableError if the object store or the database fails. The round goes on if the caller is cancelled.
        """
        demand = _Demand()
        self._demands.append(demand)
        self._asked.set()
        await demand.done.wait()
        if demand.error is not None:
            raise UnavailableError(demand.error)
        return self.checkpoint_status()

    async def run(self) -> None:
        """Run rounds and truncate the log until cancelled."""
        pause_s = timing.LOG_TRUNCATION_LOOK_EVERY_S
        while True:
            demands, self._demands = self._demands, []
            self._asked.clear()
            try:
                await self._look(is_demanded=bool(demands))
                self._note_success()
                pause_s = timing.LOG_TRUNCATION_LOOK_EVERY_S
            except _ERRORS as error:
                self._note_failure(error)
                pause_s = min(2 * pause_s, timing.LOG_TRUNCATION_RETRY_MAX_S)
            for demand in demands:
                demand.error = self._error
                demand.done.set()
            with trio.move_on_after(pause_s):
                await self._asked.wait()

    def _note_success(self) -> None:
        if self._error is not None:
            log.info("checkpoints can be written again")
        self._error = None

    def _note_failure(self, error: Exception) -> None:
        self._litter = True
        if self._error is None:
            log.warning("cannot write checkpoints; the log is kept whole until that works: %s", error)
        self._error = str(error)

    # ---- one look

    async def _look(self, *, is_demanded: bool) -> None:
        if not self._is_known:
            await self._recognise()
        rounds = await self._rounds()
        await self._size.measure(rounds[-1].position if rounds else 0)
        is_new = await self._is_due(rounds, is_demanded=is_demanded)
        if is_new:
            await self._round(rounds)
            rounds = await self._rounds()
        is_new |= await self._put_in_force(rounds)
        rounds = await self._rounds()
        if rounds and rounds[0].in_force:
            await self._collect(rounds[0].context)
            await self._size.measure(rounds[-1].position)
        if rounds and (is_new or self._litter):
            await self._clean(rounds)

    async def _rounds(self) -> list[Round]:
        """Return the rounds whose manifests are in the object store: at most one in force and one pending."""
        rounds = [one for one in await self._store.read(catalog.rounds) if one.made_ms is not None]
        self._newest = rounds[-1] if rounds else None
        return rounds

    async def _recognise(self) -> None:
        """Forget all saved checkpoints unless the newest manifest in the store is the one that this database knows."""
        rounds = await self._store.read(catalog.rounds)
        known = [one for one in rounds if one.made_ms is not None]
        if known and known[-1].made_ms == await self._archive.newest_ms():  # no need to read it, which may take long
            self._is_known = True
            return
        newest = await self._archive.newest(self._archive.home.sid)
        unsure = next((one for one in rounds if one.made_ms is None), None)
        context = context_of(newest.context) if newest else None
        if (newest.made_ms if newest else None) == (known[-1].made_ms if known else None):
            self._is_known = True
            return
        if (
            newest
            and unsure
            and unsure.context == context
            and all((one.made_ms or 0) < newest.made_ms for one in known)
        ):
            await self._store.write(partial(catalog.note_manifest, number=unsure.number, made_ms=newest.made_ms))
        else:
            what = (
                f"its newest manifest, {newest.name}, is not the one that node.db names"
                if newest
                else "the last manifest that node.db names is gone"
            )
            log.warning("the object store and node.db disagree: %s; writing all checkpoints again", what)
            while await self._store.write(catalog.forget):
                await trio.lowlevel.checkpoint()
        self._is_known = True

    async def _is_due(self, rounds: Sequence[Round], *, is_demanded: bool) -> bool:
        last = rounds[-1] if rounds else None
        if await self._store.read(catalog.is_unproven_unsaved) or (last is None and self._store.collected):
            return True
        if self._store.tail.end <= (last.position if last else 0):
            return False
        if last is not None and not last.in_force:
            return False  # a new round would restart the wait for `log.keep`
        if is_demanded:
            return True
        if self._size.grown_bytes >= self._limits.max_size_bytes / ROUND_PART:
            return True
        since_ms = last.made_ms if last else await self._store.read(entry_removal.oldest_ms)
        return since_ms is not None and self._age_s(since_ms) >= min(
            timing.LOG_TRUNCATION_ROUND_EVERY_S, self._limits.keep_s / ROUND_PART
        )

    def _age_s(self, ms: int) -> float:
        return (self._environment.clock_ms() - ms) / 1000

    async def _round(self, rounds: Sequence[Round]) -> None:
        grown_bytes = self._size.grown_bytes
        await self._checkpoint_writer.publish(rounds[-1].number + 1 if rounds else 1)
        self._size.rest(grown_bytes)

    # ---- in force

    async def _put_in_force(self, rounds: Sequence[Round]) -> bool:
        """Put the pending manifest in force if possible; return True if it was."""
        self._lacking = ()
        if not rounds or rounds[-1].in_force:
            return False
        pending = rounds[-1]
        self._lacking = tuple(self._known.lacking(pending.covered))
        if self._lacking:
            why = self._why_not_wait(pending)
            if why is None:
                return False
            log.warning("the log %s: truncating it although %s did not confirm all of its entries; a node that"
                        " lacks some gets them by SYNC", why, ", ".join(self._lacking))  # fmt: skip
        await self._store.write(partial(catalog.put_in_force, number=pending.number))
        self._lacking = ()
        return True

    def _why_not_wait(self, pending: Round) -> str | None:
        assert pending.made_ms is not None
        age_s = self._age_s(pending.made_ms)
        if age_s < timing.LOG_TRUNCATION_AGE_MIN_S:
            return None  # a client may still wait for copies of a change on other disks, which count only with its body
        if self._size.size_bytes > self._limits.max_size_bytes:
            return "is larger than `log.max_size`"
        return "has been kept for `log.keep`" if age_s >= self._limits.keep_s else None

    async def _collect(self, upto: Context) -> None:
        """Delete settled entries from the log, in slices, between which the writer does other work."""
        total = 0
        while (gone := await self._store.write(partial(entry_removal.collect, upto=upto))).entries:
            total += gone.entries
            await trio.lowlevel.checkpoint()
        if total:
            log.info("removed %d entries from the log", total)
        if self._forget is not None and (total or self._litter):
            await self._forget(self._store.collected)

    # ---- superfluous objects

    async def _clean(self, rounds: Sequence[Round]) -> None:
        """Delete superfluous manifests, then the checkpoints that only they listed."""
        needed = {one.made_ms for one in rounds}
        await self._archive.delete_manifests(needed)
        after: bytes | None = b""
        async with self._store.reader() as reader:  # it looks through all checkpoints
            while after is not None:
                heads, after = await reader.read(partial(catalog.superfluous, after=after))
                if heads:
                    await self._archive.delete_checkpoints(heads)
                    await self._store.write(partial(catalog.forget_heads, heads=heads))
        if self._litter:
            await self._archive.delete_all_but(self._heads_of)
        self._litter = False

    async def _heads_of(self, chain_ids: Sequence[bytes]) -> list[NamedHead]:
        return await self._store.read(partial(catalog.are_saved, chain_ids=chain_ids))


class NoLogTruncation:
    """A stand-in for `LogTruncation` on a node that has no object store for checkpoints, and so keeps its log whole."""

    def checkpoint_status(self) -> CheckpointStatus:
        """Return an empty status."""
        return CheckpointStatus()

    @property
    def unsaved_bytes(self) -> int:
        """Always 0."""
        return 0

    async def checkpoint_now(self) -> CheckpointStatus:
        """Raise UnavailableError."""
        await trio.lowlevel.checkpoint()
        raise UnavailableError("this node has nowhere to keep checkpoints")

    async def run(self) -> None:
        """Do nothing until cancelled."""
        await trio.sleep_forever()
