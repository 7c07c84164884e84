"""Receives the log of one peer: entries are written to disk in batches, then acknowledged.

An entry that would leave a gap in its origin's sequence is refused, and the peer is asked for the entries in between.
An entry whose predecessor is not here is written, and waits in the store.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

import trio

from protocol.commands import Ack, Entries, EntryCommand, Log, RefusalCode, Refused, Remote
from protocol.values import Dot, context_dots
from replicator.errors import DiskFullError
from replicator.replication import timing
from replicator.replication.links.entry_batch import is_heavy_to_unpack, unpack_batch
from replicator.replication.links.entry_codec import Announced, Arrived, EntryAssembler, error_of, is_heavy_to_add
from replicator.replication.links.link import NoReplyError, PeerLink
from replicator.replication.links.object_entries import RemoteEntries
from replicator.replication.log.body_completion import BodyCompletion, of_some_size
from replicator.replication.log.disk_shortage import DiskShortage
from replicator.replication.log.entry_counts import EntryCounts
from replicator.runtime.signals import Signal
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import receive
from replicator.store.store import Store
from resync.entry import Entry

log = logging.getLogger(__name__)

WAITING_BYTES = 8 << 20  # of entries that have arrived and are not yet on disk; beyond it the link is not read
ENTRY_OVERHEAD_BYTES = 2048  # measured: the objects of an entry that adds a message, 1.9 KB

LinkTo = Callable[[str], PeerLink | None]
"""SID -> the link to that neighbour, if there is one."""

TooOld = Callable[[str], None]
"""A callback for the SID of a peer whose log begins after this node's context."""


class Receiver:
    """The receiver of one peer's log, which writes it to this node's disk."""

    def __init__(
        self,
        store: Store,
        link: PeerLink,
        link_to: LinkTo,
        *,
        too_old: TooOld,
        may_ask: trio.Event,
        remotes: RemoteEntries,
        body_completion: BodyCompletion,
        disk_shortage: DiskShortage,
        counts: EntryCounts,
    ) -> None:
        self._store = store
        self._link = link
        self._link_to = link_to
        self._too_old = too_old
        self._may_ask = may_ask
        self._remotes = remotes
        self._inline_until = -math.inf  # until then the peer sends all entries on the link, none by object store
        self._assembler = EntryAssembler(link.key_of)
        self._body_completion = body_completion
        self._disk_shortage = disk_shortage
        self._counts = counts
        self._is_completing = False  # attachments are requested on this link, so it must be read meanwhile
        self._has_dropped = False
        self._waiting: list[Arrived | Announced] = []
        self._waiting_bytes = 0
        self._arrived = Signal()
        self._taken = Signal()
        self._told: dict[str, int] = {}
        self._to_ask = Signal()

    async def take(self, command: EntryCommand | Entries | Remote) -> None:
        """Take the next command of an entry, or a batch. Wait while too much is on its way to disk.

        Do not wait while attachments of large messages are being fetched, since they arrive on this link too: entries
        beyond the limit are then dropped and asked for again. Raises ProtocolError.
        """
        arrived = await self._whole(command)
        if not arrived:
            return
        self._counts.received += len(arrived)
        if self._is_completing and self._waiting_bytes > WAITING_BYTES:
            self._has_dropped = True
            return
        for item in arrived:
            if isinstance(item, Arrived):
                item.arrived_s = trio.current_time()
            self._waiting_bytes += item.memory_bytes + ENTRY_OVERHEAD_BYTES
        self._waiting += arrived
        self._arrived.set()
        while self._waiting_bytes > WAITING_BYTES and not self._is_completing:
            await self._taken.wait()

    async def _whole(self, command: EntryCommand | Entries | Remote) -> Sequence[Arrived | Announced]:
        """Return the entries that the command completes. Raises ProtocolError."""
        if isinstance(command, Entries):
            self._assembler.expect_whole()
            unpack = partial(unpack_batch, command)
            return await self._link.run_in_thread(unpack) if is_heavy_to_unpack(command) else unpack()
        if isinstance(command, Remote):
            self._remotes.check(self._link, command)
            return [self._assembler.announce(command)]
        add = partial(self._assembler.add, command)
        # The link is not read meanwhile, so nothing else uses the assembler.
        arrived = await self._link.run_in_thread(add) if is_heavy_to_add(command) else add()
        return [] if arrived is None else [arrived]

    async def run(self) -> None:
        """Ask for the entries that this node lacks, then write and acknowledge until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_asking)
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
                self._read_on()
                for some in of_some_size(batch):  # earlier entries are acknowledged before large messages are fetched
                    await self._complete_and_write([item for item in some if self._is_missing(item.dot)])
                    self._acknowledge(some)
                if self._has_dropped or any(self._is_missing(item.dot) for item in batch):
                    self._has_dropped = False
                    self.ask_again()

    @property
    def is_taking(self) -> bool:
        """True if entries that have arrived are not yet on disk."""
        return self._is_completing or bool(self._waiting)

    def ask_again(self) -> None:
        """Ask the peer to send all entries that this node lacks."""
        self._to_ask.set()

    def routes_changed(self) -> None:
        """Forget which ACKs were sent, so that all are sent again: some may not have reached nodes behind the peer."""
        self._told = {}

    def tell(self, *, again: bool = False) -> None:
        """Acknowledge to the peer all entries that came by other routes since the last ACK; `again`: all entries."""
        if again:
            self._told = {}
        for origin, seq in self._store.context.items():
            self._tell(self._link, origin, seq)

    async def _complete_and_write(self, batch: Sequence[Arrived | Announced]) -> None:
        self._is_completing = any(isinstance(item, Arrived) and item.large for item in batch)
        if self._is_completing:
            self._read_on()
        try:
            async with self._body_completion.completed(batch, self._is_missing) as whole:
                await self._write(whole)
        finally:
            self._is_completing = False

    def _read_on(self) -> None:
        self._taken.notify()

    async def _write(self, batch: Sequence[Arrived | Announced]) -> None:
        """Write all entries of the batch that can be obtained; return when they are on disk.

        Raises HistoryError for an entry that no node can have numbered.
        """
        whole: list[Arrived] = []
        for item in batch:
            if isinstance(item, Arrived):
                whole.append(item)
                continue
            await self._write_whole(whole)  # so that one entry from the object store is in memory at a time
            entry = await self._fetch(item)
            whole = [] if entry is None else [Arrived(entry, [])]
        await self._write_whole(whole)

    async def _fetch(self, announced: Announced) -> Entry | None:
        """Fetch an entry from the object store.

        None if the entry is already here, if there is a gap before it, or if it cannot be read: then the peer is asked
        to send it on the link.
        """
        origin, seq = announced.dot
        if seq != self._store.context.get(origin, 0) + 1 or trio.current_time() < self._inline_until:
            return None
        entry = await self._remotes.get(announced)
        if entry is None:
            self._inline_until = trio.current_time() + timing.OBJECT_ENTRIES_INLINE_S
        return entry

    async def _write_whole(self, batch: list[Arrived]) -> None:
        if not batch:
            return
        try:
            await self._store.write(partial(_receive_all, batch))
        except (DatabaseDamagedError, DiskFullError):  # one mailbox or message must not hold up all others
            for item in batch:
                await self._write_one(item)

    async def _write_one(self, item: Arrived) -> None:
        entry = item.entry
        try:
            await self._write_until_there_is_room(item, partial(_receive_all, [item]))
        except DatabaseDamagedError as error:
            log.warning(
                "an entry of %s waits until `replicator check --repair` has repaired the database: %s",
                entry.user,
                error,
            )
            while True:
                try:
                    held = partial(receive, entry=entry, bodies=item.bodies, hold=True)
                    return await self._write_until_there_is_room(item, held)
                except DatabaseDamagedError:  # the log itself is damaged
                    await trio.sleep(timing.RECEIVER_DISK_FULL_RETRY_S)

    async def _write_until_there_is_room(self, item: Arrived, work: Callable[[Transaction], None]) -> None:
        """Write, and retry while the disk is full. Raises HistoryError, DatabaseDamagedError."""
        try:
            while True:
                try:
                    return await self._store.write(work)
                except DiskFullError:  # the link stays up for traffic that needs no disk
                    size_bytes = sum(stored.size_bytes for stored in item.bodies)
                    self._disk_shortage.note(self, {item.dot: (item.entry.user, size_bytes)}, self._disk_shortage.data)
                    await trio.sleep(timing.RECEIVER_DISK_FULL_RETRY_S)
        finally:
            self._disk_shortage.note(self, {}, self._disk_shortage.data)

    async def _keep_asking(self) -> None:
        """Request the log whenever `ask_again` was called. Raises the error of a refusal other than TOO-OLD.

        Runs as a separate task, because the reply may be queued behind entries that wait to be written.
        """
        await self._may_ask.wait()
        while True:
            self._to_ask.clear()
            self._told = {}  # a LOG informs the peer alone; nodes behind the peer hear from the ACKs that it passes on
            inline = trio.current_time() < self._inline_until
            try:
                reply = await self._link.request(Log(context_dots(self._store.context), inline))
            except NoReplyError:
                continue
            if isinstance(reply, Refused) and reply.code == RefusalCode.TOO_OLD:
                self._too_old(self._link.sid)
            elif isinstance(reply, Refused):
                raise error_of(reply)
            await self._to_ask.wait()

    def _is_missing(self, dot: Dot) -> bool:
        return dot.seq > self._store.context.get(dot.origin, 0)

    def _acknowledge(self, batch: Sequence[Arrived | Announced]) -> None:
        """Acknowledge the batch to the peer that sent it and to the nodes that numbered it, which wait for ACKs."""
        for origin in dict.fromkeys(item.dot.origin for item in batch):
            seq = self._store.context.get(origin, 0)
            self._tell(self._link, origin, seq)
            author = self._link_to(Dot(origin, seq).sid)
            if author is not None and author is not self._link:
                author.post(Ack(origin, seq))

    def _tell(self, link: PeerLink, origin: str, seq: int) -> None:
        if self._told.get(origin, 0) < seq:
            self._told[origin] = seq
            link.post(Ack(origin, seq))


def _receive_all(batch: list[Arrived], tx: Transaction) -> None:
    for item in batch:
        receive(tx, item.entry, item.bodies)
