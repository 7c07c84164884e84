"""Transfers entries of very many changes through the object store that nodes share (design section 6).

The first node to send such an entry writes it to the store, and sends its peers the name instead. This is only an
optimisation: if the store fails or is slow, the entry travels on the link like any other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import TypeVar

import trio

from protocol.commands import Hello, Remote
from protocol.stream_codec import ProtocolError
from protocol.units import KIB, MIB
from protocol.values import Context
from replicator.config import CheckpointConfig
from replicator.replication import timing
from replicator.replication.links.entry_codec import Announced
from replicator.replication.links.link import PeerLink
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore, ObjectStoreError, RetryPolicy
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.checkpoints.entry_object import EntryReader, dot_of, entries_of, entry_name, write_entry
from replicator.store.db.transaction import Logged
from resync.entry import Entry, MailAdd

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANGES_MIN = 100  # entries with more changes are worth an object; fewer are sent sooner than an object is written
BYTES_MIN = 64 * KIB  # larger entries are worth an object, too: a merge is one change for hundreds of rows
BYTES_MAX = 64 * MIB  # of one object, which is in memory as a whole
CAPABILITY = "REMOTE-"  # followed by a hash of the object store's URL
PATIENCE = RetryPolicy(
    connect_s=timing.OBJECT_ENTRIES_CONNECT_S,
    silence_s=timing.OBJECT_ENTRIES_SILENCE_S,
    request_s=timing.OBJECT_ENTRIES_TIMEOUT_S,
    retries=0,
)


def capability(checkpoint: CheckpointConfig) -> tuple[str, ...]:
    """Return the HELLO capability of a node that shares its object store: equal at all nodes that share it."""
    if not checkpoint.shared:
        return ()
    store = f"{checkpoint.url}\n{checkpoint.endpoint or ''}"
    return (f"{CAPABILITY}{sha256(store.encode()).hexdigest()[:32]}",)


def warn_of_another(checkpoint: CheckpointConfig, hello: Hello) -> None:
    """Warn if both nodes share an object store, but not the same one: the operator has probably meant them to."""
    theirs = {ability for ability in hello.capabilities if ability.startswith(CAPABILITY)}
    if checkpoint.shared and theirs and theirs.isdisjoint(capability(checkpoint)):
        log.warning(
            "%s and this node both set `checkpoint.shared`, but for different object stores, this node for %s; make"
            " `checkpoint.url` and `checkpoint.endpoint` the same at both, or very large changes travel on the link",
            hello.sid,
            checkpoint.url,
        )


class RemoteEntries:
    """Entries in the object store. Belongs to the event loop."""

    def __init__(self, checkpoint: CheckpointConfig, cluster: str, environment: Environment) -> None:
        self._capability = capability(checkpoint)
        self._cluster = cluster
        self._run_in_thread = environment.run_in_thread
        self._objects = ObjectStore(checkpoint.url, environment, checkpoint.endpoint, PATIENCE)
        self._writing = trio.Lock()  # when several links send one entry, the first writes it and the others find it
        self._rests_until = -math.inf
        self._overdue: set[trio.Event] = set()  # operations that were given up and still hang in the store
        self._work_in, self._work_out = trio.open_memory_channel[Callable[[], Awaitable[None]]](math.inf)

    async def run(self) -> None:
        """Run the operations on the object store, so that callers can give up waiting, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for work in self._work_out:
                nursery.start_soon(work)

    def is_shared_on(self, link: PeerLink) -> bool:
        """Return True if the peer shares the same object store."""
        return bool(self._capability) and set(self._capability) <= set(link.hello.capabilities)

    def check(self, link: PeerLink, remote: Remote) -> None:
        """Check a REMOTE. Raises ProtocolError if the peer may not send it to this node, or it names a wrong object."""
        if not self.is_shared_on(link):
            raise ProtocolError("a node that shares no object store with this one sent a REMOTE")
        if remote.name != entry_name(self._cluster, remote.entry.dot):
            raise ProtocolError(f"a REMOTE names {remote.name[:80]!r}, which is not the object of {remote.entry.dot}")

    async def put(self, item: Logged) -> str | None:
        """Write the entry's object if it does not exist yet; return its name, or None to send the entry on the link."""
        if not _is_worth_it(item) or trio.current_time() < self._rests_until:
            return None
        name = await self._in_time(partial(self._put, item.entry))
        if name is None:
            self._rests_until = trio.current_time() + timing.OBJECT_ENTRIES_REST_S
        return name

    async def get(self, announced: Announced) -> Entry | None:
        """Read an entry that a peer has put there; return None if that fails."""
        return await self._in_time(partial(self._get, announced))

    async def forget(self, collected: Context) -> None:
        """Delete the objects of entries up to a context, which are no longer in this node's log.

        A node that has yet to send one of these entries writes its object again. Raises ObjectStoreError. Takes long.
        """
        if not self._capability:
            return
        async with aclosing(self._objects.list(entries_of(self._cluster))) as found:
            dots = [(info.name, dot_of(info.name)) async for info in found]
        await self._objects.delete(
            [name for name, dot in dots if dot is not None and dot.seq <= collected.get(dot.origin, 0)]
        )

    async def _put(self, entry: Entry) -> str:
        name = entry_name(self._cluster, entry.dot)
        async with self._writing:
            if not await self._objects.exists(name):
                await self._objects.put(name, write_entry(entry))
        return name

    async def _get(self, announced: Announced) -> Entry:
        name = entry_name(self._cluster, announced.dot)
        reader = EntryReader(name, announced.header.changes, BYTES_MAX)
        async with aclosing(self._objects.get(name)) as parts:
            async for part in parts:
                await self._run_in_thread(partial(reader.receive, part))
        return await self._run_in_thread(lambda: announced.entry(reader.changes()))

    async def _in_time(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of the work, or None.

        None if the work fails, takes longer than `OBJECT_ENTRIES_TIMEOUT_S`, or if an earlier operation still hangs.
        """
        if self._overdue:
            return None
        results: list[T] = []
        done = trio.Event()

        async def attempt() -> None:
            try:
                results.append(await work())
            except (ObjectStoreError, UnreadableError, ValueError) as error:
                log.warning("a large entry travels on the link because the object store failed: %s", error)
            finally:
                done.set()
                self._overdue.discard(done)

        self._work_in.send_nowait(attempt)
        with trio.move_on_after(timing.OBJECT_ENTRIES_TIMEOUT_S):
            await done.wait()
        if not done.is_set():
            log.warning(
                "the object store has not answered for %.0f s; entries travel on links until it does",
                timing.OBJECT_ENTRIES_TIMEOUT_S,
            )
            self._overdue.add(done)
        return results[0] if results else None


def _is_worth_it(item: Logged) -> bool:
    """Return True if an object saves anything. Entries that bring bodies travel with them on the link."""
    changes = item.entry.changes
    if any(isinstance(change, MailAdd) and not change.copied for change in changes):
        return False
    return (len(changes) > CHANGES_MIN or item.size_bytes > BYTES_MIN) and item.size_bytes <= BYTES_MAX
