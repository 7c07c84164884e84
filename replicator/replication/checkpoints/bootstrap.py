"""Bootstraps a new node from checkpoints that other nodes left in a shared object store (design section 6).

The newest manifest lists one consistent set: everything that a node showed, and the log context that it includes. Once
every checkpoint of the set is installed, this node's log begins after that context. If any checkpoint fails, those
already installed stay, and the rest arrives by the log from its beginning, or by SYNC.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from protocol.values import context_of, covers
from replicator.errors import HistoryError, MailError
from replicator.replication import timing
from replicator.replication.checkpoints.installation import adoption_of
from replicator.replication.parallel import in_turns
from replicator.runtime.objects import ObjectMissingError, ObjectStoreError, deadline
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.checkpoints.manifest import Manifest
from replicator.store.db import queries
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import Connection
from replicator.store.db.transaction import Transaction
from replicator.store.log.snapshot_install import Adoption, DamageError, adopt
from replicator.store.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 8  # checkpoints in parallel: some are read while others are written
SLICE = 1000  # heads of the manifest per step

_ERRORS = (ObjectStoreError, UnreadableError, HistoryError, DamageError, MailError)


class Bootstrap:
    """The installation of the newest checkpoints on an empty node. Belongs to the event loop."""

    def __init__(self, store: Store, archive: Archive, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._archive = archive
        self._clock_ms = clock_ms
        self.done = self.total = 0  # checkpoints

    async def run(self) -> None:
        """Install the newest checkpoints if this node is empty; then return."""
        try:
            if not await self._store.read(_is_empty):
                return
            with deadline(timing.BOOTSTRAP_FIND_TIMEOUT_S):
                until_ms = self._clock_ms() - int(timing.BOOTSTRAP_AGE_MIN_S * 1000)
                manifest = await self._archive.newest(until_ms=until_ms)
            if manifest is not None:
                await self._take_over(manifest)
        except _ERRORS as error:
            log.warning("this node does not begin with checkpoints: %s", error)

    async def _take_over(self, manifest: Manifest) -> None:
        """Install all checkpoints of a manifest. Raises one of `_ERRORS` if the object store fails."""
        async with aclosing(self._archive.heads(manifest)) as heads:
            while some := await _slice(heads):
                self.total += len(some)
        log.info("this node begins with the %d checkpoints of %s", self.total, manifest.name)
        failed: list[Exception] = []

        async def take_over(head: NamedHead) -> None:
            try:
                await self._adopt(manifest.home, head)
            except _ERRORS as error:
                if isinstance(error, ObjectStoreError) and not isinstance(error, ObjectMissingError):
                    raise
                failed.append(error)
            self.done += 1

        async with aclosing(self._archive.heads(manifest)) as heads:
            while some := await _slice(heads):
                await in_turns(take_over, some, AT_ONCE)
        if failed:
            log.warning(
                "%d of %d checkpoints could not be installed, so other nodes send what they hold; for example: %s",
                len(failed), self.total, failed[0],
            )  # fmt: skip
            return
        context = context_of(manifest.context)
        await self._store.write(lambda tx: tx.begin_log_after(context))

    async def _adopt(self, home: Home, head: NamedHead) -> None:
        with deadline(timing.BOOTSTRAP_READ_TIMEOUT_S):
            content = await self._archive.content(home, head)
        await self._store.write(partial(_adopt, adoption=adoption_of(head, content)))


async def _slice(heads: AsyncGenerator[NamedHead, None]) -> list[NamedHead]:
    """Return the next few heads of a manifest; empty at its end. Raises the errors of `Archive.heads`."""
    found: list[NamedHead] = []
    with deadline(timing.BOOTSTRAP_READ_TIMEOUT_S):
        while len(found) < SLICE and (head := await anext(heads, None)) is not None:
            found.append(head)
    return found


def _adopt(tx: Transaction, adoption: Adoption) -> None:
    """Install a checkpoint, unless a newer state from a peer arrived meanwhile. Raises HistoryError, DamageError."""
    key = adoption.key
    here = tx.chain(key.mailbox_id)
    if here is not None and covers(here.context, adoption.theirs.context):
        return
    if here is not None:
        raise HistoryError(
            f"this node already has a mailbox of {key.user}, in a state from which the checkpoint does not continue"
        )
    adopt(tx, adoption)


def _is_empty(connection: Connection) -> bool:
    return not queries.log_context(connection) and next(queries.chains_of(connection, None), None) is None
