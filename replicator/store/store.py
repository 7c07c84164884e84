"""The store as the rest of the node uses it: submit work to the writer, read beside it, follow what is published."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

import trio

from protocol.values import Dot, sid_of
from replicator.config import LimitsConfig
from replicator.errors import MailError, UnavailableError
from replicator.mail.view import MailboxView
from replicator.runtime.environment import Environment, ThreadRunner
from replicator.runtime.files.file_modes import create_private
from replicator.runtime.signals import Signal
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.files import Files
from replicator.store.attachments.store import Attachments
from replicator.store.db import chain as chains
from replicator.store.db import queries, schema
from replicator.store.db import tally as tallies
from replicator.store.db.chain import Usage
from replicator.store.db.damage import Damage, DatabaseDamagedError
from replicator.store.db.memory.folder_views import FolderViews
from replicator.store.db.memory.shown_digests import ShownDigests
from replicator.store.db.memory.usage_cache import UsageCache
from replicator.store.db.memory.view_cache import Views
from replicator.store.db.memory.waiting_entries import WaitingEntries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.readers import Readers
from replicator.store.db.tally import Tally
from replicator.store.db.transaction import Commit, Logged, Transaction
from replicator.store.db.writer import Writer
from replicator.store.log import pending_resync
from resync.folder_tree import Share

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTACHMENTS = "attachments"  # the directory beside the database
READERS = 2  # connections, and so threads, that read at once
TAIL_BYTES = 16 << 20  # of recent entries in memory, from which links that keep up are served
TAIL_ENTRY_OVERHEAD = 2048  # measured: the objects of an entry that adds a message, 1.9 KB
SLICE_ENTRIES, SLICE_BYTES = 256, 4 << 20  # of one read of the log from disk
LOOK_EVERY_S = 0.5  # interval of checks whether a state taken over from a peer has brought an awaited entry's effect
RESTS = 9  # times as long as a slice of a count takes, before the next one, if nobody waits for it
REST_MAX_S = 1.0
CLOSE_TIMEOUT_S = 10.0  # for work submitted before the store closes

Listener = Callable[[Commit], None]


class Tail:
    """The newest part of the log, in memory."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._entries: deque[Logged] = deque()
        self._size_bytes = 0
        self._grown = Signal()

    def extend(self, logged: list[Logged]) -> None:
        """Add entries that were just written."""
        if not logged:
            return
        for item in logged:
            self._entries.append(item)
            self._size_bytes += item.memory_bytes + TAIL_ENTRY_OVERHEAD
        while self._size_bytes > TAIL_BYTES and len(self._entries) > 1:
            self._size_bytes -= self._entries.popleft().memory_bytes + TAIL_ENTRY_OVERHEAD
        self.end = logged[-1].position
        self.wake()

    def after(self, position: int) -> list[Logged] | None:
        """Return the entries after a position, or None if they are not all in memory."""
        if position >= self.end:
            return []
        if not self._entries or self._entries[0].position > position + 1:
            return None
        skip = position + 1 - self._entries[0].position
        return [self._entries[index] for index in range(skip, min(len(self._entries), skip + SLICE_ENTRIES))]

    def forget(self) -> None:
        """Keep no entries in memory: those on disk have been corrected."""
        self._entries.clear()
        self._size_bytes = 0

    def wake(self) -> None:
        """Wake the tasks that wait for entries."""
        self._grown.notify()

    async def grown(self) -> None:
        """Return when the log has grown."""
        await self._grown.wait()


class Reader:
    """A reading connection, for one query at a time."""

    def __init__(self, connection: sqlite3.Connection, run_in_thread: ThreadRunner, damage: Damage) -> None:
        self._connection = connection
        self._run_in_thread = run_in_thread
        self._damage = damage

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer. It sees the last commit, or the snapshot of the reader's open transaction."""
        with self._damage.noticed():
            return await self._run_in_thread(partial(query, self._connection))


class Store:
    """One node's disk. Use `Store.open`; `listeners` are called with each commit, in order, on the event loop."""

    def __init__(self, path: Path, origin: str, environment: Environment, files: Files, limits: LimitsConfig) -> None:
        self.path = path
        self.origin = origin
        self.damage = Damage(path, environment.clock_ms)
        self._environment = environment
        self._directory = path.parent
        self.attachments = Attachments(files, sid_of(origin), environment.new_guid().hex())
        open_file = environment.open_database
        self._open_reader = partial(schema.open_reader, path, open_file)
        with ExitStack() as opened:
            opened.enter_context(schema.exclusive(path))
            create_private(path)  # SQLite gives the files beside it the same mode
            self._connection = opened.enter_context(closing(schema.open_writer(path, open_file)))
            shared = [opened.enter_context(closing(self._open_reader())) for _ in range(READERS)]
            self._readers = Readers(shared, environment.run_in_thread, self.damage)
            self._writer = Writer(
                self._connection,
                origin=origin,
                clock_ms=environment.clock_ms,
                stopwatch_s=environment.stopwatch_s,
                run_in_thread=environment.run_in_thread,
                publish=self._publish,
                damage=self.damage,
                limits=limits,
            )
            self.context = queries.log_context(self._connection)
            self.collected = queries.log_collected(self._connection)
            self.tail = Tail(queries.log_end(self._connection))
            self.waiting = WaitingEntries(queries.log_waiting(self._connection), environment.clock_ms)
            self._unsettled_after = pending_resync.unsettled_after(self._connection)
            self._opened = opened.pop_all()
        self._writing = trio.CancelScope(shield=True)
        self.views = Views(lambda key: self.read(partial(queries.view, key=key)))
        self.folder_views = FolderViews(self.read)
        self.shown_digests = ShownDigests(self.reader, self.flush, environment.run_in_thread)
        self._usages = UsageCache(self.write)
        self.tally: Tally | None = tallies.load(self._connection)
        """The sum of what this node shows, as of the last commit; None: it is not counted yet."""
        self._counts, self.miscounts = 0, 0  # counts that have ended; those that found another sum than was known
        self._uncounted: DatabaseDamagedError | None = None  # why the last commit could count no more
        self.listeners: list[Listener] = []
        self._awaited: dict[Dot, set[trio.Event]] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        origin: str,
        environment: Environment,
        files: Files | None = None,
        limits: LimitsConfig | None = None,
    ) -> AsyncIterator[Self]:
        """Open the store of the database at `path`; on exit, submitted work is written and everything is closed.

        `files`: the attachment store's directory; None: `attachments` beside the database.

        Raises DataError if the file cannot be used, ConfigError if it belongs to another node.
        """
        files = files or DiskFiles(path.parent / ATTACHMENTS)
        store = await environment.run_in_thread(
            partial(cls, path, origin, environment, files, limits or LimitsConfig())
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.run)
                try:
                    yield store
                finally:
                    await store.stop()
        finally:
            store.close()

    async def run(self) -> None:
        """Write until `stop`, even while the surrounding nursery is being cancelled."""
        with self._writing:
            await self._writer.run()

    async def stop(self) -> None:
        """Write what was submitted, then stop the writer."""
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self.flush()
        self._writing.cancel()

    def close(self) -> None:
        """Close the connections. No read or write may be running any more."""
        self._opened.close()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """See `Writer.submit`."""
        return await self._writer.submit(work)

    def take_share(self, share: Share) -> None:
        """Give folders that are created here UIDVALIDITYs of this share from now on."""
        self._writer.share = share

    @property
    def queued(self) -> int:
        """See `Writer.queued`."""
        return self._writer.queued

    @property
    def last_time(self) -> int:
        """See `Writer.last_time`."""
        return self._writer.last_time

    async def flush(self) -> None:
        """See `Writer.flush`."""
        await self._writer.flush()

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query beside the writer; it sees the last commit.

        Raises what the query raises, and DatabaseFailedError.
        """
        return await self._readers.read(query)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """Open a reading connection for a long job, so that the job keeps none of the shared ones from clients.

        Raises DatabaseFailedError if it cannot be opened.
        """
        with self.damage.noticed():
            connection = await self._environment.run_in_thread(self._open_reader)
        try:
            yield Reader(connection, self._environment.run_in_thread, self.damage)
        finally:
            connection.close()

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[BinaryIO]:
        """Open a temporary file on this disk for data too large for memory; it is removed afterwards.

        It is to be used in threads. Raises UnavailableError if the block raises OSError, for example for want of room.
        """
        open_scratch = partial(self._environment.open_scratch, self._directory)
        try:
            with closing(await self._environment.run_in_thread(open_scratch)) as file:
                yield file
        except OSError as error:
            text = f"{self._directory}: cannot write or read a temporary file: {error.strerror}; is there room?"
            raise UnavailableError(text) from error

    async def log_after(self, position: int) -> list[Logged]:
        """Return entries after a position, at least one if there is any; from memory if they are recent."""
        recent = self.tail.after(position)
        if recent is not None:
            return recent
        end = self.tail.end  # a commit readable but not yet published must not be returned
        return await self.read(lambda reader: queries.log_after(reader, position, end, SLICE_ENTRIES, SLICE_BYTES))

    async def view(self, key: MailboxKey) -> MailboxView:
        """Return the live view of a mailbox."""
        return await self.views.get(key)

    async def usage(self, user: str) -> Usage:
        """Return what all mailboxes of the user hold, as this node shows them. Raises DatabaseFailedError."""
        return await self._usages.get(user)

    async def count(self, *, at_leisure: bool = False) -> None:
        """Count what this node shows, for `tally`. Raises what `count_slice` raises.

        `at_leisure`: rest after each slice for many times as long as it took, while nobody waits for the sum.
        """
        began = trio.current_time()
        while not await self.count_slice():
            if at_leisure:
                await trio.sleep(min(RESTS * (trio.current_time() - began), REST_MAX_S))
            began = trio.current_time()

    async def count_slice(self) -> bool:
        """Count the next slice. Return True if this ends a count. Raises what `write` raises, DatabaseDamagedError."""
        counts = self._counts
        await self.write(lambda tx: tx.extend_count())
        if self._uncounted is not None:
            raise self.damage.note(self._uncounted)
        return self._counts > counts

    def has_waiting(self, chain_id: bytes) -> bool:
        """Return True if entries of the mailbox or tree wait for missing predecessors, or stand on another branch."""
        return self.waiting.is_in(chain_id)

    def is_waiting(self, dot: Dot) -> bool:
        """Return True if the entry is in the log but this node does not show its effect."""
        return dot in self.waiting

    def settled(self) -> dict[str, int]:
        """Return, per origin, the seq up to which all entries are or were in the log and their effect is shown here."""
        settled = dict(self.context)
        for origin, seq in self.waiting:
            settled[origin] = min(settled[origin], seq - 1)
        for origin, seq in self._unsettled_after.items():
            settled[origin] = min(settled.get(origin, 0), seq)
        return {origin: seq for origin, seq in settled.items() if seq}

    async def wait_logged(self, dot: Dot) -> None:
        """Return when the entry, and all entries of its origin before it, are on this disk."""
        while self.context.get(dot.origin, 0) < dot.seq:
            await self.tail.grown()

    async def wait_applied(self, dot: Dot, chain_id: bytes) -> None:
        """Return when this node shows the effect of an entry of the mailbox or tree."""
        if self.context.get(dot.origin, 0) >= dot.seq and dot not in self.waiting:
            return
        event = trio.Event()
        waiters = self._awaited.setdefault(dot, set())
        waiters.add(event)
        try:
            while not event.is_set():
                with trio.move_on_after(LOOK_EVERY_S):
                    await event.wait()
                    return
                with suppress(MailError):  # a failed read is tried again in the next round
                    chain = await self.read(partial(chains.load, chain_id=chain_id))
                    if chain is not None and chain.has_seen(dot):
                        return
        finally:
            waiters.discard(event)
            if not waiters:
                self._awaited.pop(dot, None)

    async def reread_waiting(self) -> None:
        """Reload the set of waiting entries from the database. Raises MailError."""
        await self.write(lambda tx: tx.reread_waiting(queries.log_waiting))

    def _note_shown(self, dot: Dot) -> None:
        self.waiting.discard(dot)
        for event in self._awaited.pop(dot, ()):
            event.set()

    def _believe_disk(self, waiting: dict[Dot, bytes]) -> None:
        for dot in self.waiting.keys() - waiting.keys():
            log.warning("%s:%d was counted as waiting, but does not wait", *dot)
            self._note_shown(dot)
        for dot, chain_id in waiting.items():
            self.waiting.add(dot, chain_id)

    async def _publish(self, commit: Commit) -> None:
        for mailbox_id in commit.retired:
            self.views.retire(mailbox_id)
        for change in commit.changes:
            await self.views.apply(change)
        # Nothing waits from here on. Whoever hears that an entry has been applied finds it shown.
        self._usages.apply(commit)
        self.tally, self._uncounted = commit.tally, commit.uncounted
        self._counts += commit.has_counted
        if commit.was_miscounted:
            self.miscounts += 1
            log.warning("the digest of everything was wrong, and has been put right: rows have changed unnoticed")
        self.folder_views.note(commit)
        self.shown_digests.note(commit)
        self.context.update(commit.context)
        self.collected.update(commit.collected)
        if commit.unsettled_after is not None:
            self._unsettled_after = commit.unsettled_after
        from_log = (entry.dot for entry in commit.applied if entry.dot not in commit.adopted)
        shown = dict.fromkeys((*from_log, *commit.absorbed))
        for item in commit.logged:
            if item.entry.dot not in shown:
                self.waiting.add(item.entry.dot, item.entry.mailbox_id)
        for dot, chain_id in commit.revived.items():
            self.waiting.add(dot, chain_id)
        for dot in shown:
            self._note_shown(dot)
        if commit.waiting is not None:
            self._believe_disk(commit.waiting)
        if commit.corrected:
            self.tail.forget()
        self.tail.extend(commit.logged)
        if commit.context and not commit.logged:
            self.tail.wake()  # a state was taken over, so the log begins later
        for listener in self.listeners:
            listener(commit)
