"""Entries of very many changes by way of the object store that nodes share (design section 6).

The node that is the first to send one writes it there, and tells its peers the name instead. It is only a saving:
where the store does not do its part, in time, the entry travels on the link like any other.
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

from protocol.codec import ProtocolError
from protocol.commands import Hello, Remote
from protocol.units import KIB, MIB
from protocol.values import Context
from replicator.config import CheckpointConfig
from replicator.environment import Environment
from replicator.objects import ObjectStore, ObjectStoreError, Patience
from replicator.replication.links.entry_codec import Announced
from replicator.replication.links.link import PeerLink
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.checkpoints.entry_object import EntryReader, dot_of, entries_of, entry_name, write_entry
from replicator.store.db.transaction import Logged
from resync.entry import Entry, MailAdd

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANGES_MIN = 100  # of an entry that is worth an object; fewer are sent sooner than one is written
BYTES_MIN = 64 * KIB  # or of its size: a merge is one change for hundreds of rows
BYTES_MAX = 64 * MIB  # of one: it is in memory as a whole
TIMEOUT_S = 10.0  # for an object: the peer's log waits for it
REST_S = 60.0  # after a failure, before an object is written again
CAPABILITY = "REMOTE-"  # and a hash of the object store's URL
INLINE_S = 600.0  # after a failure to read, for which a peer sends none
PATIENCE = Patience(connect_s=2.0, silence_s=5.0, request_s=TIMEOUT_S, retries=0)


def capability(checkpoint: CheckpointConfig) -> tuple[str, ...]:
    """What a node says in HELLO if it shares its object store: the same at all nodes that share one."""
    if not checkpoint.shared:
        return ()
    store = f"{checkpoint.url}\n{checkpoint.endpoint or ''}"
    return (f"{CAPABILITY}{sha256(store.encode()).hexdigest()[:32]}",)


def warn_of_another(checkpoint: CheckpointConfig, hello: Hello) -> None:
    """Say it if a peer shares an object store, and not this one: somebody has meant them to be the same."""
    theirs = {ability for ability in hello.capabilities if ability.startswith(CAPABILITY)}
    if checkpoint.shared and theirs and theirs.isdisjoint(capability(checkpoint)):
        log.warning(
            "%s and this node say `checkpoint.shared` of different object stores, this one of %s; `checkpoint.url` and"
            " `checkpoint.endpoint` must be the same at both, or very large changes travel on the link",
            hello.sid,
            checkpoint.url,
        )


class RemoteEntries:
    """The entries in the object store. Belongs to the event loop."""

    def __init__(self, checkpoint: CheckpointConfig, cluster: str, environment: Environment) -> None:
        self._capability = capability(checkpoint)
        self._cluster = cluster
        self._run_in_thread = environment.run_in_thread
        self._objects = ObjectStore(checkpoint.url, environment, checkpoint.endpoint, PATIENCE)
        self._writing = trio.Lock()  # links that send one entry at once: the first writes it, the others find it
        self._rests_until = -math.inf
        self._overdue: set[trio.Event] = set()  # what was given up, and of which the store does not let go
        self._work_in, self._work_out = trio.open_memory_channel[Callable[[], Awaitable[None]]](math.inf)

    async def run(self) -> None:
        """Wait for the object store, so that nobody else has to, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for work in self._work_out:
                nursery.start_soon(work)

    def is_shared_on(self, link: PeerLink) -> bool:
        """Whether the peer has the same object store."""
        return bool(self._capability) and set(self._capability) <= set(link.hello.capabilities)

    def check(self, link: PeerLink, remote: Remote) -> None:
        """Raises ProtocolError for what a peer cannot say to this node."""
        if not self.is_shared_on(link):
            raise ProtocolError("a REMOTE, and this node shares no object store with its sender")
        if remote.name != entry_name(self._cluster, remote.entry.dot):
            raise ProtocolError(f"a REMOTE names {remote.name[:80]!r}, where {remote.entry.dot} does not lie")

    async def put(self, item: Logged) -> str | None:
        """The name of the object that holds the entry: it is written if it is not there. None: send it on the link."""
        if not _is_worth_it(item) or trio.current_time() < self._rests_until:
            return None
        name = await self._in_time(partial(self._put, item.entry))
        if name is None:
            self._rests_until = trio.current_time() + REST_S
        return name

    async def get(self, announced: Announced) -> Entry | None:
        """An entry that a peer has put there; None: it cannot be had."""
        return await self._in_time(partial(self._get, announced))

    async def forget(self, collected: Context) -> None:
        """Delete the objects of entries up to a context, which are not in this node's log any more.

        Where another node has still to send one, it is written again. Raises ObjectStoreError. Takes long.
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
        """What comes of it within `TIMEOUT_S`; None if nothing does, or what was begun before still hangs."""
        if self._overdue:
            return None
        results: list[T] = []
        done = trio.Event()

        async def attempt() -> None:
            try:
                results.append(await work())
            except (ObjectStoreError, UnreadableError, ValueError) as error:
                log.warning("an entry of many changes travels on the link instead: %s", error)
            finally:
                done.set()
                self._overdue.discard(done)

        self._work_in.send_nowait(attempt)
        with trio.move_on_after(TIMEOUT_S):
            await done.wait()
        if not done.is_set():
            log.warning(
                "the object store has not answered for %.0f s; entries travel on links until it does", TIMEOUT_S
            )
            self._overdue.add(done)
        return results[0] if results else None


def _is_worth_it(item: Logged) -> bool:
    """Whether an object saves anything. Texts that come with an entry travel on the link, and it with them."""
    changes = item.entry.changes
    if any(isinstance(change, MailAdd) and not change.copied for change in changes):
        return False
    return (len(changes) > CHANGES_MIN or item.size_bytes > BYTES_MIN) and item.size_bytes <= BYTES_MAX
