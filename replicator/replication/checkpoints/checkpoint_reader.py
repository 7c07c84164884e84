"""Replay bases from this node's checkpoints, for chains whose first entries have left the log.

Checkpoints are read from the object store on the event loop; `store.log.replay` continues from there in a thread.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

import trio

from protocol.values import Dot
from replicator.replication import timing
from replicator.runtime.environment import ThreadRunner
from replicator.runtime.objects import ObjectMissingError, ObjectStoreError, deadline
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import state_of
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.log.replay import Base, base_for
from replicator.store.store import Store

log = logging.getLogger(__name__)


class ReplayBases(Protocol):
    """A source of replay bases."""

    async def base_of(self, chain_id: bytes, head: Dot | None = None) -> Base | None:
        """Return the base for a replay of the chain to that head, or to its present one.

        None: there is only the log, or the checkpoint cannot be read now, which is logged.
        """
        ...


class LogAlone:
    """The replay bases of a node without checkpoints: none. See `ReplayBases`."""

    async def base_of(self, chain_id: bytes, head: Dot | None = None) -> Base | None:  # noqa: ARG002 - the protocol's
        """Return None."""
        await trio.lowlevel.checkpoint()
        return None


class CheckpointSource:
    """Replay bases from the object store. See `ReplayBases`."""

    def __init__(self, store: Store, archive: Archive, run_in_thread: ThreadRunner) -> None:
        self._store = store
        self._archive = archive
        self._run_in_thread = run_in_thread

    async def base_of(self, chain_id: bytes, head: Dot | None = None) -> Base | None:
        """Return the base for a replay; see `ReplayBases`.

        Forgets a missing or damaged checkpoint, so that the next round writes it anew. Raises MailError or
        DatabaseFailedError.
        """
        saved = await self._store.read(partial(base_for, chain_id=chain_id, head=head))
        if saved is None:
            return None
        try:
            with deadline(timing.CHECKPOINT_READER_READ_TIMEOUT_S):
                history, changes = await self._archive.content(self._archive.home, saved)
        except (UnreadableError, ObjectMissingError) as error:
            log.warning("a checkpoint is missing or unreadable and will be written again: %s", error)
            await self._store.write(partial(catalog.forget_unreadable, head=saved))
        except ObjectStoreError as error:
            log.warning("cannot read a checkpoint now: %s", error)
        else:
            return Base(saved, history, await self._run_in_thread(partial(state_of, saved, changes)))
        return None
