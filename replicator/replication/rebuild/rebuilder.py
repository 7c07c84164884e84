"""`replicator rebuild`: fills an empty node from its peers, then adds what only its damaged database still has.

A peer is a source unless it is being rebuilt itself: two such nodes would agree on nothing. First everything arrives by
the log or by SYNC, as at any node that is behind, until this node has all that each source showed when it was compared.
Then entries that no source has, and missing bodies, are read from the damaged database, before neighbours are asked for
the bodies. An interrupted rebuild begins again, with less left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.commands import Done, Mismatch, Parts
from protocol.values import Dot, covers
from replicator.errors import HistoryError, MailError
from replicator.replication import timing
from replicator.replication.bodies import Keepers
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import name_of
from replicator.replication.coordinator import Coordinator
from replicator.replication.links.handshake import REBUILDING
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.rebuild.kept_attachments import KeptAttachments
from replicator.replication.rebuild.redelivery import RebuildError, Redelivery
from replicator.replication.startup.node_admission import NEW
from replicator.replication.tasks.inspection import Inspection
from replicator.replication.writes.head_exchange import ask
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import StoredBody, body_count, lacking, lacking_count, write_body
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import receive
from replicator.store.repair import table_check
from replicator.store.repair.damaged_database import DamagedDatabase, ReadableSlice
from replicator.store.store import Store
from replicator.tasks import CheckStatus, Finding
from resync.entry import Entry, MailAdd

__all__ = ["Progress", "Rebuild", "RebuildError", "Rebuilt"]

log = logging.getLogger(__name__)

SLICE = 256  # bodies per read
DIFFERING_MAX = 1000  # mailboxes per comparison; if more differ, most are still in transit


@dataclass(frozen=True, slots=True)
class Progress:
    """The step and progress of a rebuild: `done` of `total` entries or bodies; 0 of 0 while it waits."""

    what: str
    done: int = 0
    total: int = 0


@dataclass(slots=True)
class Rebuilt:
    """Result of a rebuild.

    `lost_entries` counts entries that the damaged database had received and that are not here; None: unknown. Of those,
    `untaken_entries` could be read but not applied: all their changes are lost, except new mail, which is delivered
    again.
    """

    peers: list[str]
    mailboxes: int = 0
    messages: int = 0
    texts: int = 0
    salvaged_entries: int = 0
    lost_entries: int | None = 0
    untaken_entries: int = 0
    untaken_changes: int = 0  # changes of flags and folders, and expunges
    delivered_anew: int = 0  # messages
    undelivered: int = 0  # messages whose body is lost, or that were refused
    waiting_entries: int = 0  # entries that are here but not shown: branches that are not joined yet
    unreadable_rows: int = 0  # rows of the damaged database's log, whether or not peers have their entries
    differing: list[str] = field(default_factory=list)  # mailboxes that a peer still shows differently
    missing_texts: list[Finding] = field(default_factory=list)
    set_aside: str | None = None  # path of the damaged database

    @property
    def is_whole(self) -> bool:
        """True if it is certain that nothing is missing."""
        return self.lost_entries == 0 and not (self.differing or self.missing_texts)


class Rebuild:
    """A rebuild of the database. Belongs to the event loop, beside a running coordinator.

    `tell` receives the progress.
    """

    def __init__(
        self, store: Store, coordinator: Coordinator, environment: Environment, tell: Callable[[Progress], None]
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._environment = environment
        self._tell = tell
        self._lacking: dict[str, dict[MailboxKey, Dot]] = {}  # SID -> heads shown there and not seen here
        self._damaged: set[MailboxKey] = set()  # mailboxes that a source shows differently at the same head
        self._met: set[str] = set()

    async def run(self, damaged: DamagedDatabase) -> Rebuilt:
        """Return when all available content is here. Raises RebuildError or MailError."""
        await self._follow()
        await self._check_collected(damaged)
        rebuilt = Rebuilt(sorted(self._met))
        untaken: dict[Dot, Entry] = {}
        rebuilt.salvaged_entries = await self._abandoned(damaged, untaken)
        rebuilt.unreadable_rows = damaged.unreadable
        rebuilt.lost_entries = await self._lost(damaged)
        rebuilt.waiting_entries = await self._joined()
        await self._fill(damaged)
        if untaken or rebuilt.lost_entries != 0:
            redelivery = Redelivery(self._store, self._coordinator, self._environment, damaged, self._keepers(damaged))
            rebuilt.delivered_anew, rebuilt.undelivered = await redelivery.run(untaken.values())
        rebuilt.untaken_entries = len(untaken)
        rebuilt.untaken_changes = sum(not isinstance(c, MailAdd) for e in untaken.values() for c in e.changes)
        rebuilt.missing_texts = await self._missing(damaged)
        differing = self._damaged.union(*self._lacking.values())
        rebuilt.differing = [await name_of(self._store, key) for key in sorted(differing)]
        rebuilt.mailboxes, rebuilt.messages, rebuilt.texts = await self._store.read(_counts)
        return rebuilt

    # ---- what peers show

    def _sources(self) -> list[PeerLink]:
        return [link for link in self._coordinator.connections.links if self._coordinator.admission.is_source(link)]

    async def _reached(self) -> list[PeerLink]:
        """Return the sources, at least one. Raises RebuildError."""
        until = trio.current_time() + timing.REBUILD_REACH_S
        while not (sources := self._sources()):
            why = self._why_none()
            self._tell(Progress(f"waiting for a peer: {why}"))
            if trio.current_time() > until:
                raise RebuildError(
                    f"no peer that has this node's former data can be reached: {why}; start such a peer, and try again"
                )
            await trio.sleep(timing.REBUILD_LOOK_EVERY_S)
        self._met |= {link.sid for link in sources}
        return sources

    async def _linked(self) -> None:
        """Wait until there is a link to each peer."""
        while any(state.link is None for state in self._coordinator.connections.peers.values()):
            self._tell(Progress(f"waiting for other peers: {self._why_none()}"))
            await trio.sleep(timing.REBUILD_LOOK_EVERY_S)

    def _why_none(self) -> str:
        """Explain why peers are not sources."""
        reasons = []
        for sid, state in self._coordinator.connections.peers.items():
            if state.link is None:
                reasons.append(f"{sid}: {state.error or 'no answer yet'}")
            elif REBUILDING in state.link.hello.capabilities:
                reasons.append(f"{sid}: it is being rebuilt, too")
            elif NEW in state.link.hello.capabilities:
                reasons.append(f"{sid}: its database is new")
        return "; ".join(reasons) or "the configuration has no [[peer]]"

    async def _follow(self) -> None:
        """Wait until everything that each source showed is here, or nothing more arrives. Raises RebuildError."""
        await self._reached()
        with trio.move_on_after(timing.REBUILD_ALL_REACH_S):
            await self._linked()
        watch = _Watch()
        while True:
            sources = await self._reached()
            for link in sources:
                if link.sid in self._lacking:
                    self._lacking[link.sid] = await self._store.read(partial(_unseen, heads=self._lacking[link.sid]))
                elif self._has_settled(link.sid) or watch.is_stuck(timing.REBUILD_STUCK_S / 2):
                    await self._compare(link)
            if all(self._lacking.get(link.sid) == {} for link in sources):
                return
            if watch.is_stuck(timing.REBUILD_STUCK_S, self._reach()):
                if not any(link.sid in self._lacking for link in sources):
                    raise RebuildError("the reachable peers send nothing; see their logs")
                return
            self._tell(self._far())
            await trio.sleep(timing.REBUILD_LOOK_EVERY_S)

    def _has_settled(self, sid: str) -> bool:
        """Return True if this node shows everything that the other node has reported as settled."""
        return covers(self._store.settled(), self._coordinator.settled_logs.known().get(sid, {}))

    async def _compare(self, link: PeerLink) -> None:
        """Note the heads that a source shows and this node lacks.

        Comparing heads is needed because a mailbox in use may never be equal at any one moment.
        """
        heads: dict[MailboxKey, Dot] = {}
        try:
            keys = await sync_client.differing_chains(self._store, self._coordinator.mastership, link.sid)
            for key in keys[:DIFFERING_MAX]:
                mine = await self._store.read(partial(chains.load, chain_id=key.mailbox_id))
                mine = mine or queries.empty_chain(key)
                reply = await ask(link, link.sid, key, mine)
                if isinstance(reply, Mismatch) and reply.head == mine.head and mine.head is not None:
                    self._damaged.add(key)
                elif isinstance(reply, Mismatch) and reply.head is not None:
                    heads[key] = reply.head
                elif not isinstance(reply, Done | Mismatch):
                    return
        except (MailError, LinkDownError) as error:
            log.info("cannot compare with %s now: %s", link.sid, error)
            return
        if len(keys) <= DIFFERING_MAX:
            self._lacking[link.sid] = heads

    def _reach(self) -> object:
        """Return a value that changes as long as anything arrives."""
        lacking = sum(map(len, self._lacking.values()))
        return sum(self._store.context.values()), self._coordinator.taken_over, lacking

    def _far(self) -> Progress:
        done, total = self._coordinator.taken_over
        if total:
            return Progress("mailboxes", done, total)
        context, target = self._store.context, dict[str, int]()
        for said in self._coordinator.settled_logs.known().values():
            target |= {origin: max(seq, target.get(origin, 0)) for origin, seq in said.items()}
        done = sum(min(seq, context.get(origin, 0)) for origin, seq in target.items())
        return Progress("entries", done, sum(target.values()))

    # ---- what the damaged database has

    async def _check_collected(self, damaged: DamagedDatabase) -> None:
        """Raise RebuildError if entries that had left the damaged log are missing here.

        All nodes once had those entries, so a node that lacks them is no source.
        """
        collected = await self._environment.run_in_thread(damaged.collected)
        if collected is not None and not covers(self._store.context, collected):
            raise RebuildError(
                f"entries that all nodes once had are missing at {', '.join(sorted(self._met))} and in the log of the"
                " damaged database: start the other nodes first"
            )

    async def _abandoned(self, damaged: DamagedDatabase, untaken: dict[Dot, Entry]) -> int:
        """Apply entries that no source has; return their number.

        `untaken` receives entries whose predecessors are missing.
        """
        came = await self._environment.run_in_thread(damaged.context) or {}
        count, before = 0, -1
        while before < count:  # an entry may precede its predecessor
            before = count
            untaken.clear()
            slices, read = damaged.log(self._store.context), 0
            while (part := await self._environment.run_in_thread(partial(next, slices, None))) is not None:
                read += part.rows
                self._tell(Progress("rows of the damaged log", read))
                if part.entries:
                    messages = [message for _, brought in part.entries for message in brought]
                    taking = self._coordinator.bodies.obtain(messages, keepers=self._keepers(damaged))
                    async with taking as bodies:
                        taken, left = await self._store.write(partial(_take_in, part=part, bodies=bodies, came=came))
                    count += taken
                    untaken |= left
        for dot in [dot for dot in untaken if dot.seq <= self._store.context.get(dot.origin, 0)]:
            del untaken[dot]  # the entry arrived from a peer meanwhile
        return count

    async def _lost(self, damaged: DamagedDatabase) -> int | None:
        had = await self._environment.run_in_thread(damaged.context)
        if had is None:
            return None
        return sum(max(0, seq - self._store.context.get(origin, 0)) for origin, seq in had.items())

    async def _joined(self) -> int:
        """Wait until all branches are joined, or no more are; return the number of entries that still wait."""
        watch = _Watch()
        while (waiting := (await self._store.read(queries.log_counts))[1]) and not watch.is_stuck(
            timing.REBUILD_JOIN_S, waiting
        ):
            self._tell(Progress(f"{waiting} entries wait for branches to be merged"))
            await trio.sleep(timing.REBUILD_LOOK_EVERY_S)
        return waiting

    # ---- bodies

    def _keepers(self, damaged: DamagedDatabase) -> Keepers:
        return KeptAttachments(damaged, self._environment.run_in_thread).keepers

    async def _fill(self, damaged: DamagedDatabase) -> None:
        """Wait until no body is missing, or no more arrive."""
        after: tuple[int, bytes] | None = None
        while some := await self._store.read(partial(lacking, before=after, count=SLICE)):
            after = some[-1]
            messages = await self._environment.run_in_thread(partial(_messages, damaged, some))
            async with self._coordinator.bodies.obtain(messages, keepers=self._keepers(damaged)) as taken:
                await self._store.write(partial(_write, bodies=taken))
        watch, total = _Watch(), 0
        while (left := await self._store.read(lacking_count)) and not watch.is_stuck(timing.REBUILD_STUCK_S, left):
            total = max(total, left)
            self._tell(Progress("texts", total - left, total))
            await self._reached()
            await trio.sleep(timing.REBUILD_LOOK_EVERY_S)

    async def _missing(self, damaged: DamagedDatabase) -> list[Finding]:
        """Look once more for the body of each message; return findings for the bodies that are nowhere."""

        async def heal(content_hash: bytes) -> bool:
            messages = await self._environment.run_in_thread(partial(_messages, damaged, [(0, content_hash)]))
            return await bodies.take_over(messages, self._keepers(damaged)) or await bodies.heal(content_hash)

        bodies = self._coordinator.bodies
        status = CheckStatus(task="scrub", rate=None, repair=True)
        async with self._store.reader() as reader:
            await Inspection(status, self._store, heal, reader).sweep_rows()
        return [finding for finding in status.findings if finding.done is None]


class _Watch:
    """Time since the last change of a value."""

    def __init__(self) -> None:
        self._since = trio.current_time()
        self._seen: object = None

    def is_stuck(self, seconds: float, now: object = None) -> bool:
        """Return True if the value has not changed for this many seconds."""
        if now is not None and now != self._seen:
            self._seen, self._since = now, trio.current_time()
        return trio.current_time() > self._since + seconds


def _unseen(connection: Connection, heads: dict[MailboxKey, Dot]) -> dict[MailboxKey, Dot]:
    """Return the heads that this node's mailboxes have not seen."""
    shown = {key: chains.load(connection, key.mailbox_id) for key in heads}
    return {key: head for key, head in heads.items() if (chain := shown[key]) is None or not chain.has_seen(head)}


def _take_in(
    tx: Transaction, part: ReadableSlice, bodies: Sequence[StoredBody], came: Mapping[str, int]
) -> tuple[int, dict[Dot, Entry]]:
    """Apply salvaged entries; return the number of new ones, and those that could not be applied."""
    count, untaken = 0, dict[Dot, Entry]()
    for entry, _ in part.entries:
        before = tx.seen(entry.dot.origin)
        stands = not any(tx.seen(origin) < seq <= came.get(origin, 0) for origin, seq in entry.predecessors)
        try:
            if stands:
                receive(tx, entry, bodies)
        except HistoryError as error:
            log.warning("cannot apply an entry of the damaged database: %s", error)
        after = tx.seen(entry.dot.origin)
        count += after - before
        if after < entry.dot.seq:
            untaken[entry.dot] = entry
    return count, untaken


def _messages(damaged: DamagedDatabase, some: list[tuple[int, bytes]]) -> list[bytes | Parts]:
    found = (damaged.body(content_hash) for _, content_hash in some)
    return [message for message in found if message is not None]


def _write(tx: Transaction, bodies: list[StoredBody]) -> None:
    for stored in bodies:
        write_body(tx.connection, stored)


def _counts(connection: Connection) -> tuple[int, int, int]:
    """Count the folders of all users, their messages, and bodies."""
    _, messages, _ = table_check.sizes(connection)
    folders = sum(len(queries.folders_in_sight(connection, user)) for user in queries.users(connection))
    return folders, messages, body_count(connection)
