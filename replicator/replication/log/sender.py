"""Sending the log to one peer, by a cursor of its own.

What the peer has it says itself: its LOG gives its context, its ACKs carry that on. From there on it gets what it
lacks, as far as this node is the one to send it (design section 4: each change crosses each needed link once). A
slow peer holds up its own cursor and nothing else. Whenever routes change, entries are collected or the peer asks
again, the cursor begins anew with what this node owes it; what went out on this connection is not sent twice. If some
of that is not in the log any more, the peer gets what came after it: that leaves a gap, the peer asks again, and its
LOG is refused, since it needs SYNC. Where nothing came after it, the link ends, and the peer asks on the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import trio

from protocol.codec import ProtocolError
from protocol.commands import Ack, Done, EntryCommand, Log, Parts, RefusalCode, Refused, Remote
from protocol.values import Dot, sid_of
from replicator.errors import UnavailableError
from replicator.replication.links.entry_codec import entry_commands, remote_command
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.links.object_entries import INLINE_S, RemoteEntries
from replicator.replication.log.gap_recovery import GapRecovery
from replicator.store.bodies.body_rows import is_here
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.entry_validation import NUMBER_MAX
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged
from replicator.store.log.gaps import log_piecewise
from replicator.store.store import Store

MAX_ORIGINS = 10_000  # that a peer may say it has: as many as its LOG has room for
DAMAGED_RETRY_S = 30.0  # where the database does not give what no peer's log can do without

Ships = Callable[[str, str], bool]
"""(origin's SID, neighbour) -> whether this node sends that origin's entries to that neighbour."""


class Sender:
    """The log's way to one peer. Belongs to the link's task."""

    def __init__(self, store: Store, link: PeerLink, ships: Ships, remotes: RemoteEntries, holes: GapRecovery) -> None:
        self.acknowledged: dict[str, int] = {}  # what the peer has said that it has
        self._store = store
        self._link = link
        self._ships = ships
        self._remotes = remotes
        self._holes = holes
        self._inline_until = -math.inf  # the peer cannot read the object store
        self._sent: dict[str, int] = {}
        self.has_context = False  # the peer has said what it has
        self._sending = False  # in the middle of an entry
        self._restart = trio.CancelScope()
        self._changed = trio.Event()

    def asked(self, log: Log) -> Done | Refused:
        """The peer says what it has, and wants the rest, also what it may have lost on the way. Refused: that is gone.

        What was said and sent on this connection before counts no more. Raises ProtocolError for what cannot be there.
        """
        check_claims(self._store, log.context)
        has = {dot.origin: dot.seq for dot in log.context}
        gone = [Dot(origin, seq) for origin, seq in self._store.collected.items() if has.get(origin, 0) < seq]
        self.has_context = not gone
        if gone:
            text = f"the log begins after {gone[0].origin}:{gone[0].seq}; use SYNC"
            return Refused(RefusalCode.TOO_OLD, text)
        self.acknowledged, self._sent = has, {}
        if log.inline:
            self._inline_until = trio.current_time() + INLINE_S
        self.start_again()
        return Done()

    def acked(self, ack: Ack) -> None:
        """So much is on the peer's disk. Less than it has said before: that was not so. Raises ProtocolError."""
        if ack.origin not in self.acknowledged and len(self.acknowledged) >= MAX_ORIGINS:
            raise ProtocolError(f"ACK of a new origin beyond {MAX_ORIGINS}")
        was = self.acknowledged.get(ack.origin, 0)
        self.acknowledged[ack.origin] = ack.seq
        if ack.seq < was:
            self.start_again()

    def doubt(self) -> None:
        """What was sent may not have come: what the peer has not acknowledged is sent once more."""
        self._sent = {}
        self.start_again()

    def start_again(self) -> None:
        """Look again from the first entry that is owed to the peer. One that is on its way is sent to its end."""
        self._changed.set()
        if not self._sending:
            self._restart.cancel()

    async def run(self) -> None:
        """Ship until cancelled or until the link is down. Raises UnavailableError if what the peer lacks is gone."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            with trio.CancelScope() as self._restart:
                try:
                    is_whole = await self._ship()
                except DatabaseDamagedError:  # what cannot be read cannot be sent; the link stays up for all else
                    is_whole = False
                if not is_whole:
                    await self._look_for_holes()

    async def _ship(self) -> bool:
        """False if the log does not give what the peer needs first. Returns if the cursor is to begin anew."""
        if not self.has_context:
            return True
        position = await self._store.read(partial(queries.log_start, context=self._not_owed()))
        if position is None:
            return False
        was_at_end = False
        while True:
            logged, end = await self._read(position)
            if end == position:  # and nothing was awaited
                if not was_at_end and self._lacks_something():
                    return False
                was_at_end = True
                await self._store.tail.grown()
                continue
            for item in logged:
                if self._is_lacking(item.entry.dot):
                    await self._send(item)
                    if self._changed.is_set():
                        return True
            position = end
            await trio.lowlevel.checkpoint()

    async def _read(self, position: int) -> tuple[Sequence[Logged], int]:
        """What comes after a position, and up to where; nothing, up to there, if that is the end."""
        end = self._store.tail.end
        try:
            logged = await self._store.log_after(position)
        except DatabaseDamagedError:
            await self._holes.look(self._not_owed())
            return await self._store.read(partial(log_piecewise, position=position, end=end))
        return logged, logged[-1].position if logged else max(position, end)

    async def _look_for_holes(self) -> None:
        """The cursor begins anew without what is behind them; if there are none, not at once."""
        try:
            held = await self._holes.look(self._not_owed())
        except DatabaseDamagedError:
            held = False
        if not held:
            await trio.sleep(DAMAGED_RETRY_S)
        self._changed.set()

    def _not_owed(self) -> dict[str, int]:
        """What the peer has, or gets from others, or cannot get."""
        return {origin: self._not_owed_of(origin, seq) for origin, seq in self._store.context.items()}

    def _not_owed_of(self, origin: str, end: int) -> int:
        """Raises UnavailableError where the peer lacks what is gone, and nothing came after that."""
        if not self._is_owed(Dot(origin, self._begin(origin) + 1)):
            return end
        if self._has(origin) < self._begin(origin) == end and self.has_context:
            raise UnavailableError(
                f"{self._link.sid} lacks entries that are not in the log any more; it asks anew, and gets them by SYNC"
            )
        return self._begin(origin)

    def _lacks_something(self) -> bool:
        not_owed = self._not_owed()
        return self.has_context and any(not_owed[origin] < seq for origin, seq in self._store.context.items())

    def _is_lacking(self, dot: Dot) -> bool:
        return self.has_context and dot.seq > self._begin(dot.origin) and self._is_owed(dot)

    def _is_owed(self, dot: Dot) -> bool:
        """Whether it would be ours to send, and can be."""
        return self._is_ours_to_send(dot.origin) and not self._holes.hold_back(dot, self._has(dot.origin))

    def _begin(self, origin: str) -> int:
        """After which entry the peer lacks the next one, as far as the log still has them."""
        return max(self._has(origin), self._store.collected.get(origin, 0))

    def _has(self, origin: str) -> int:
        """Up to where the peer has it, or will have it by this link."""
        return max(self._sent.get(origin, 0), self.acknowledged.get(origin, 0))

    def _is_ours_to_send(self, origin: str) -> bool:
        return origin != self._link.hello.origin and self._ships(sid_of(origin), self._link.sid)

    async def _send(self, item: Logged) -> None:
        entry = item.entry
        key = MailboxKey(entry.user, entry.mailbox_id, entry.uidvalidity)
        item = await self._without_expired(item)
        name = ""
        if not entry.is_tree and not self._link.is_numbered(key):
            name = await self._store.read(lambda reader: queries.folder_name(reader, key.mailbox_id) or "")
        commands = await self._commands(item, lambda key: self._link.number(key, name))
        self._sending = True
        try:
            for command in commands:
                await self._link.room()
                if self._link.closed:
                    raise LinkDownError(self._link.sid)
                self._link.post(command)
        finally:
            self._sending = False
        self._sent[entry.dot.origin] = entry.dot.seq

    async def _without_expired(self, item: Logged) -> Logged:
        """Without the large messages that are not kept any more: the peer would ask for their parts in vain."""
        parted = [content_hash for content_hash, text in item.texts.items() if isinstance(text, Parts)]
        if not parted:
            return item
        try:
            gone = await self._store.read(
                lambda reader: [content_hash for content_hash in parted if not is_here(reader, content_hash)]
            )
        except DatabaseDamagedError:
            return item
        return replace(item, texts={key: text for key, text in item.texts.items() if key not in gone})

    async def _commands(self, item: Logged, number: Callable[[MailboxKey], int]) -> Iterator[EntryCommand | Remote]:
        if self._remotes.is_shared_on(self._link) and trio.current_time() >= self._inline_until:
            name = await self._remotes.put(item)
            if name is not None:
                return iter([remote_command(item.entry, number, name)])
        return entry_commands(item, number)


def check_claims(store: Store, claims: Sequence[Dot]) -> None:
    """What a peer says that it or another node has on disk. Raises ProtocolError for what nobody can have.

    Of other nodes' entries that may be more than is here.
    """
    numbered = store.context.get(store.origin, 0)
    for origin, seq in claims:
        if origin == store.origin and seq > numbered:
            raise ProtocolError(f"{origin} {seq} is said to be on a disk: this node has not numbered that yet")
        if not 0 < seq < NUMBER_MAX:
            raise ProtocolError(f"{origin} {seq} is said to be on a disk: nobody numbers that")
    if len({origin for origin, _ in claims}) < len(claims):
        raise ProtocolError("a LOG names an origin twice")
