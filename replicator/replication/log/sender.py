"""Sends the log to one peer, reading it with a cursor of its own.

The peer reports which entries it has: its LOG gives its context, and its ACKs extend the context. The peer is owed all
entries after that which this node is to send it (design section 4: each change crosses each needed link once). A slow
peer holds up its own cursor and nothing else. Whenever routes change, entries are collected or the peer asks again, the
cursor starts over with the first entry owed; entries that were sent on this connection are not sent twice. If some of
the entries owed are no longer in the log, the peer gets the entries after them: it sees a gap, asks again, and its LOG
is refused, since it needs SYNC. If there are no entries after them, the link ends, and the peer asks on the next one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import trio

from protocol.commands import Ack, Done, EntryCommand, Log, RefusalCode, Refused, Remote
from protocol.stream_codec import ProtocolError
from protocol.values import Dot, context_of, sid_of
from replicator.errors import UnavailableError
from replicator.replication import timing
from replicator.replication.links.entry_batch import batch_of, fits_alone, is_long, pack_batch
from replicator.replication.links.entry_codec import entry_commands, is_heavy, remote_command
from replicator.replication.links.handshake import ENTRIES, LONG_ENTRIES
from replicator.replication.links.link import COMMANDS_AT_ONCE, LinkDownError, PeerLink
from replicator.replication.links.object_entries import RemoteEntries
from replicator.replication.log.entry_counts import EntryCounts
from replicator.replication.log.gap_recovery import GapRecovery
from replicator.runtime.signals import Signal
from replicator.store.bodies.body_rows import is_here
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.entry_validation import NUMBER_MAX
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged
from replicator.store.log.gaps import log_piecewise
from replicator.store.store import Store

MAX_ORIGINS = 10_000  # in the context that a peer may report: as many as fit into a LOG

Ships = Callable[[str, str], bool]
"""(SID of an origin, neighbour) -> True if this node sends that origin's entries to that neighbour."""


class Sender:
    """The sender of the log to one peer. Belongs to the link's task."""

    def __init__(
        self,
        store: Store,
        link: PeerLink,
        ships: Ships,
        *,
        remotes: RemoteEntries,
        gaps: GapRecovery,
        counts: EntryCounts,
    ) -> None:
        self.acknowledged: dict[str, int] = {}  # the context that the peer has reported
        self._store = store
        self._link = link
        self._ships = ships
        self._remotes = remotes
        self._gaps = gaps
        self._counts = counts
        self._inline_until = -math.inf  # until then the peer cannot read the object store
        self._sent: dict[str, int] = {}
        self.has_context = False  # the peer has reported its context
        self._sending = False  # in the middle of an entry
        self._restart = trio.CancelScope()
        self._changed = Signal()
        self._heard = Signal()  # what the peer has
        self._is_down = False

    def asked(self, log: Log) -> Done | Refused:
        """Answer a LOG: take the peer's context, and send the entries that it lacks, even if they were sent before.

        The context replaces all that was acknowledged and sent on this connection so far. Return Refused if an entry
        that the peer lacks is no longer in the log. Raises ProtocolError if the peer cannot have what it claims.
        """
        check_claims(self._store, log.context)
        has = context_of(log.context)
        gone = [Dot(origin, seq) for origin, seq in self._store.collected.items() if has.get(origin, 0) < seq]
        self.acknowledged, self._sent = has, {}
        self._heard.notify()
        self.has_context = not gone
        if gone:
            text = f"the log begins after {gone[0].origin}:{gone[0].seq}; use SYNC"
            return Refused(RefusalCode.TOO_OLD, text)
        if log.inline:
            self._inline_until = trio.current_time() + timing.OBJECT_ENTRIES_INLINE_S
        self.start_again()
        return Done()

    def acked(self, ack: Ack) -> None:
        """Note how far an origin is on the peer's disk; less than the peer said before corrects that.

        Raises ProtocolError if the peer names too many origins.
        """
        if ack.origin not in self.acknowledged and len(self.acknowledged) >= MAX_ORIGINS:
            raise ProtocolError(f"ACK names more than {MAX_ORIGINS} origins")
        was = self.acknowledged.get(ack.origin, 0)
        self.acknowledged[ack.origin] = ack.seq
        self._heard.notify()
        if ack.seq < was:
            self.start_again()

    async def wait_acknowledged(self, dot: Dot) -> None:
        """Return once the peer has said that its disk has the entry, and all before it of that origin.

        Return without that when the link ends.
        """
        while self.acknowledged.get(dot.origin, 0) < dot.seq and not self._is_down:
            await self._heard.wait()

    def link_down(self) -> None:
        """Let those who wait for the peer's word go on: the link has ended."""
        self._is_down = True
        self._heard.notify()

    def doubt(self) -> None:
        """Send all entries again that the peer has not acknowledged: they may not have arrived."""
        self._sent = {}
        self.start_again()

    def start_again(self) -> None:
        """Start over with the first entry owed to the peer, after completing an entry that is being sent."""
        self._changed.set()
        if not self._sending:
            self._restart.cancel()

    @property
    def backlog(self) -> int:
        """Number of entries that this node is to send to the peer and has not sent yet; 0 until the peer has asked."""
        if not self.has_context:
            return 0
        return sum(
            seq - begin
            for origin, seq in self._store.context.items()
            if seq > (begin := self._begin(origin)) and self._is_ours_to_send(origin)
        )

    async def run(self) -> None:
        """Send until cancelled or until the link is down.

        Raises UnavailableError if entries that the peer lacks are no longer in the log.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            with trio.CancelScope() as self._restart:
                try:
                    is_whole = await self._ship()
                except DatabaseDamagedError:  # unreadable entries cannot be sent; the link stays up for all others
                    is_whole = False
                if not is_whole:
                    await self._look_for_gaps()

    async def _ship(self) -> bool:
        """Send until the cursor is to start over. False if the log lacks the entry that the peer needs first."""
        if not self.has_context:
            return True
        position = await self._store.read(partial(queries.log_start, context=self._not_owed()))
        if position is None:
            return False
        was_at_end = False
        while True:
            logged, end = await self._read(position)
            if end == position:  # found without yielding to the event loop, so that no growth is missed below
                if not was_at_end and self._lacks_something():
                    return False
                was_at_end = True
                await self._store.tail.grown()
                continue
            at = 0
            while batch := self._next(logged, at):
                await self._send(batch)
                if self._changed.is_set():
                    return True
                at = bisect_right(logged, batch[-1].position, key=lambda item: item.position)
            position = end
            if position < self._store.tail.end:
                await trio.lowlevel.checkpoint()

    async def _read(self, position: int) -> tuple[Sequence[Logged], int]:
        """Return the entries after a position, and the position up to which they were read.

        At the end of the log: no entries, and the same position.
        """
        end = self._store.tail.end
        try:
            logged = await self._store.log_after(position)
        except DatabaseDamagedError:
            await self._gaps.look(self._not_owed())
            return await self._store.read(partial(log_piecewise, position=position, end=end))
        return logged, logged[-1].position if logged else max(position, end)

    async def _look_for_gaps(self) -> None:
        """Look for gaps, then start over without the entries behind them; without any gap, pause first."""
        try:
            held = await self._gaps.look(self._not_owed())
        except DatabaseDamagedError:
            held = False
        if not held:
            await trio.sleep(timing.SENDER_DAMAGED_RETRY_S)
        self._changed.set()

    def _not_owed(self) -> dict[str, int]:
        """Return origin -> seq up to which the peer has the entries, gets them from other nodes, or cannot get them."""
        return {origin: self._not_owed_of(origin, seq) for origin, seq in self._store.context.items()}

    def _not_owed_of(self, origin: str, end: int) -> int:
        """Return the seq of one origin for `_not_owed`.

        Raises UnavailableError if the peer lacks entries that are no longer in the log, and none came after them.
        """
        if not self._is_owed(Dot(origin, self._begin(origin) + 1)):
            return end
        if self._has(origin) < self._begin(origin) == end and self.has_context:
            raise UnavailableError(
                f"{self._link.sid} lacks entries that have left this node's log; it will ask again, and get them by"
                " SYNC"
            )
        return self._begin(origin)

    def _lacks_something(self) -> bool:
        not_owed = self._not_owed()
        return self.has_context and any(not_owed[origin] < seq for origin, seq in self._store.context.items())

    def _is_lacking(self, dot: Dot) -> bool:
        return self.has_context and dot.seq > self._begin(dot.origin) and self._is_owed(dot)

    def _is_owed(self, dot: Dot) -> bool:
        """Return True if this node is to send the entry, and no gap holds it back."""
        return self._is_ours_to_send(dot.origin) and not self._gaps.hold_back(dot, self._has(dot.origin))

    def _begin(self, origin: str) -> int:
        """Return the seq after which the next entry for the peer follows, as far as the log still has entries."""
        return max(self._has(origin), self._store.collected.get(origin, 0))

    def _has(self, origin: str) -> int:
        """Return the seq up to which the peer has the origin's entries or is being sent them on this link."""
        return max(self._sent.get(origin, 0), self.acknowledged.get(origin, 0))

    def _is_ours_to_send(self, origin: str) -> bool:
        return origin != self._link.hello.origin and self._ships(sid_of(origin), self._link.sid)

    def _next(self, logged: Sequence[Logged], at: int) -> list[Logged]:
        """Return the next entry that the peer lacks, with those that can be sent together with it; or nothing."""
        lacking = (item for item in islice(logged, at, None) if self._is_lacking(item.entry.dot))
        return batch_of(lacking if self._takes_batches else islice(lacking, 1))

    @property
    def _takes_batches(self) -> bool:
        return ENTRIES in self._link.hello.capabilities

    def _can_go_packed(self, item: Logged) -> bool:
        """Return True if the entry can go as a batch of its own; a long one only where requests hardly wait for it."""
        takes_long = self._link.is_quick and LONG_ENTRIES in self._link.hello.capabilities
        return self._takes_batches and fits_alone(item) and (takes_long or not is_long(item))

    async def _send(self, batch: Sequence[Logged]) -> None:
        if len(batch) == 1 and not self._can_go_packed(batch[0]):
            await self._send_as_commands(batch[0])
            return
        await self._link.room(for_long=len(batch) == 1 and is_long(batch[0]))
        if self._link.closed:
            raise LinkDownError(self._link.sid)
        self._link.post(pack_batch(batch))
        self._counts.sent += len(batch)
        for item in batch:
            self._sent[item.entry.dot.origin] = item.entry.dot.seq

    async def _send_as_commands(self, item: Logged) -> None:
        entry = item.entry
        key = MailboxKey.of(entry)
        item = await self._without_expired(item)
        name = ""
        if not entry.is_tree and not self._link.is_numbered(key):
            name = await self._store.read(lambda reader: queries.folder_name(reader, key.mailbox_id) or "")
        commands = await self._commands(item, lambda key: self._link.number(key, name))
        self._sending = True
        try:
            for number, command in enumerate(commands, 1):
                if number % COMMANDS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                await self._link.room()
                if self._link.closed:
                    raise LinkDownError(self._link.sid)
                self._link.post(command)
        finally:
            self._sending = False
        self._counts.sent += 1
        self._sent[entry.dot.origin] = entry.dot.seq

    async def _without_expired(self, item: Logged) -> Logged:
        """Leave out large messages that are no longer kept: the peer would ask for their attachments in vain."""
        large = [content_hash for content_hash, body in item.bodies.items() if body.parts is not None]
        if not large:
            return item
        try:
            gone = await self._store.read(
                lambda reader: [content_hash for content_hash in large if not is_here(reader, content_hash)]
            )
        except DatabaseDamagedError:
            return item
        return replace(item, bodies={key: body for key, body in item.bodies.items() if key not in gone})

    async def _commands(self, item: Logged, number: Callable[[MailboxKey], int]) -> Iterator[EntryCommand | Remote]:
        if self._remotes.is_shared_on(self._link) and trio.current_time() >= self._inline_until:
            name = await self._remotes.put(item)
            if name is not None:
                return iter([remote_command(item.entry, number, name)])
        if item.entry.is_tree or not is_heavy(item.entry):
            return entry_commands(item, number)
        mailbox = number(MailboxKey.of(item.entry))
        return iter(await self._link.run_in_thread(lambda: list(entry_commands(item, lambda _: mailbox))))


def check_claims(store: Store, claims: Sequence[Dot]) -> None:
    """Check which entries a peer says are on its own or another node's disk.

    Raises ProtocolError for entries that no node can have. Claims of other nodes' entries may exceed those here.
    """
    numbered = store.context.get(store.origin, 0)
    for origin, seq in claims:
        if origin == store.origin and seq > numbered:
            raise ProtocolError(f"a claim that {origin} {seq} is on a disk: this node has not numbered that entry yet")
        if not 0 < seq < NUMBER_MAX:
            raise ProtocolError(f"a claim that {origin} {seq} is on a disk: no node can have numbered that entry")
    if len({origin for origin, _ in claims}) < len(claims):
        raise ProtocolError("a LOG names an origin twice")
