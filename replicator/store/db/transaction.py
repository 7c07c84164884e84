"""One transaction of the writer, with which jobs read and change the log and the chains.

Everything here runs in the writer's thread. Changed rows of chains and origins stay in memory and are written once,
when the transaction ends. After a failure the whole memory is dropped and read from disk again.

Rule for jobs: raise a MailError or a HistoryError before changing anything, or not at all. Any other error undoes the
whole transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.values import Context, Dot
from replicator.config import LimitsConfig
from replicator.mail.view import ViewChange
from replicator.store.bodies.body_rows import StoredBody, write_body
from replicator.store.bodies.deletion_candidates import spare_bodies_of
from replicator.store.db import chain as chains
from replicator.store.db import tally as tallies
from replicator.store.db.chain import Chain, Usage
from replicator.store.db.damage import DatabaseDamagedError, WrongCountError
from replicator.store.db.tally import NO_COUNT, NOTHING, Count, Shown, Tally, shown
from resync.clock import HybridClock, is_believed
from resync.conflicts import Conflicts
from resync.entry import Change, Entry
from resync.folder_tree import Share

_APPEND = "INSERT INTO log (origin, seq, time, chain, applied, offset_bytes, body) VALUES (?,?,?,?,?,?,?)"

NONE_BEFORE = Dot("", 0)
"""Stand-in for the predecessor of entries that have none, in the table `waiting`; no entry has this name."""

CHAINS_IN_MEMORY = 10_000  # about 1 KiB each


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry on this node's disk. `bodies` maps a hash to the body that came with the entry."""

    position: int
    entry: Entry
    entry_bytes: int  # without bodies
    bodies: Mapping[bytes, StoredBody] = field(default_factory=dict, repr=False)

    @property
    def size_bytes(self) -> int:
        """Size of the entry with its bodies, whichever way they are kept."""
        return self.entry_bytes + sum(body.size_bytes for body in self.bodies.values())

    @property
    def memory_bytes(self) -> int:
        """Memory taken by the entry and its bodies."""
        return self.entry_bytes + sum(body.memory_bytes for body in self.bodies.values())


@dataclass(slots=True)
class Commit:
    """The effects of one transaction, in order; published once they are on disk."""

    logged: list[Logged] = field(default_factory=list)
    applied: list[Entry] = field(default_factory=list)
    adopted: set[Dot] = field(default_factory=set)  # of `applied`: steps to another node's head, in no log
    absorbed: list[Dot] = field(default_factory=list)  # entries of other branches that wait no longer
    abandoned: dict[Dot, bytes] = field(default_factory=dict)  # of `absorbed`: in no merge, never applicable -> chains
    revived: dict[Dot, bytes] = field(default_factory=dict)  # once abandoned, waiting again -> their chains
    mismatched: dict[Dot, Entry] = field(default_factory=dict)  # they name another history of the head, and wait
    changes: list[ViewChange] = field(default_factory=list)
    retired: list[bytes] = field(default_factory=list)  # mailboxes whose folder is gone or has another UIDVALIDITY
    context: dict[str, int] = field(default_factory=dict)  # origins that grew
    collected: dict[str, int] = field(default_factory=dict)  # origins whose log begins later now
    unsettled_after: dict[str, int] | None = None  # see `pending_resync`; None: unchanged
    corrected: bool = False  # bodies that entries in the log name have been replaced
    waiting: dict[Dot, bytes] | None = None  # all waiting entries -> their chains, if a job asked for them
    usage: dict[str, Usage] = field(default_factory=dict)  # of users whom a job asked about, after the transaction
    growth: dict[str, Usage] = field(default_factory=dict)  # what users' mailboxes hold more, or less, than before
    recounted: set[str] = field(default_factory=set)  # users of mailboxes whose counters were wrong
    mended: set[str] = field(default_factory=set)  # users with rows that have been repaired
    tally: Tally | None = None  # after the transaction; None: not counted yet
    digests: dict[bytes, int] | None = None  # of the chains that have changed; None: not known of all
    count: Count = NO_COUNT  # after the transaction
    has_counted: bool = False  # a count has ended
    was_miscounted: bool = False  # the tally before was another
    uncounted: DatabaseDamagedError | None = None  # why no more could be counted
    merged: list[Conflicts] = field(default_factory=list)  # what the merges that were made here had to decide
    jobs: int = 0  # that share the transaction
    took_s: float = 0.0  # seconds of COMMIT: its fsync and, now and then, a checkpoint of the write-ahead log


@dataclass(slots=True)
class Origin:
    """The part of one origin's log that is here: the entries after `collected`, up to `seq`. See `schema`."""

    seq: int = 0
    offset_bytes: int = 0
    collected: int = 0
    lost: int = 0


class Memory:
    """The writer's cache of rows between transactions."""

    def __init__(self, connection: sqlite3.Connection, count: Count = NO_COUNT) -> None:
        self.chains: dict[bytes, Chain] = {}
        self.tally = tallies.load(connection)  # as of the last commit, like the next
        self.count = count
        rows = connection.execute("SELECT name, seq, offset_bytes, collected, lost FROM origin")
        self.origins = {name: Origin(*numbers) for name, *numbers in rows}


class Transaction:
    """The reads and writes of one batch of jobs. `origin` names the entries that are numbered here.

    `limits`: so many folders, subscriptions and annotations may a user have who asks for one more here. `share`: of
    the UIDVALIDITYs, those for folders that are created here.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        memory: Memory,
        origin: str,
        clock: HybridClock,
        limits: LimitsConfig,
        *,
        share: Share,
    ) -> None:
        self.connection = connection
        self.memory = memory
        self.commit = Commit()
        self.origin = origin
        self.limits = limits
        self.share = share
        self._clock = clock
        self._changed_chains: dict[bytes, Chain] = {}
        self._held_before: dict[bytes, Usage] = {}  # what the changed mailboxes held before
        self._shown_before: dict[bytes, Shown] = {}  # what the changed chains added to the tally
        self._tally = memory.tally
        self._count = memory.count
        self._count_grows = False
        self._users_to_count: set[str] = set()
        self._read_waiting: Callable[[sqlite3.Connection], dict[Dot, bytes]] | None = None

    def chain(self, chain_id: bytes) -> Chain | None:
        """Return a chain's current state, or None. The caller must not change it."""
        known = self.memory.chains.get(chain_id)
        if known is None and (known := chains.load(self.connection, chain_id)) is not None:
            self._remember(known)
        return known

    def chain_to_change(self, chain_id: bytes, user: str, uidvalidity: int) -> Chain:
        """Return a chain about to get a new head, or a new chain. Raises DamagedRowError if its row was lost."""
        chain = self.chain(chain_id)
        if chain is None:
            chains.check_new(self.connection, chain_id)
            return self.begin_chain(chain_id, user, uidvalidity)
        self._changed_chains[chain_id] = chain
        self._held_before.setdefault(chain_id, chain.usage)
        if chain_id not in self._shown_before and self._is_counted(chain_id):
            self._shown_before[chain_id] = chain.tallied or shown(chain)
        return chain

    def begin_chain(self, chain_id: bytes, user: str, uidvalidity: int) -> Chain:
        """Begin a new chain that is about to get a head.

        Its row in `recent` stays as evidence if the chain's row is lost.
        """
        chain = self._changed_chains[chain_id] = Chain(chain_id, user, uidvalidity)
        self._held_before.setdefault(chain_id, chain.usage)
        self._shown_before.setdefault(chain_id, NOTHING)
        self._remember(chain)
        self.connection.execute("INSERT OR IGNORE INTO recent (mailbox, uidnext) VALUES (?, 1)", (chain_id,))
        return chain

    def next_entry(self, chain_id: bytes, user: str, uidvalidity: int, changes: Sequence[Change]) -> Entry:
        """Build this node's next entry on the chain's head, not yet logged.

        Raises DamagedRowError if the head is lost.
        """
        chain = self.chain(chain_id)
        if chain is None:
            chains.check_new(self.connection, chain_id)
            chain = Chain(chain_id, user, uidvalidity)
        time = self._clock.tick()
        assert time > chain.time or not is_believed(chain.time), "a stamp is later than all that it stands on"
        return Entry(
            dot=self.next_dot(),
            predecessors=(chain.head,) if chain.head else (),
            time=time,
            modseq=chain.highestmodseq + 1,
            user=user,
            mailbox_id=chain_id,
            uidvalidity=uidvalidity,
            changes=tuple(changes),
            histories=(chain.history,) if chain.head else (),
            dated=True,
        )

    def observe(self, time: int) -> None:
        """Observe a stamp that no entry in the log has, so that later stamps exceed it, after a restart too."""
        self._clock.observe(time)
        self.connection.execute("INSERT OR REPLACE INTO clock (id, time) VALUES (1, ?)", (self._clock.last,))

    def begin_log_after(self, context: Context) -> None:
        """Continue the log after these entries: their effect is shown here already, and the entries will not arrive.

        Origins whose log here goes further keep what they have; the log has no entries left of the other origins. This
        node's own origin is skipped: no other node can have more of its entries, whatever it claims.
        """
        for name, seq in context.items():
            if name != self.origin and self.seen(name) < seq:
                origin = self.memory.origins.setdefault(name, Origin())
                origin.seq = self.commit.context[name] = seq
                self.forget_entries(name, seq)

    def wall_ms(self) -> int:
        """Return the time of this machine's clock, in ms."""
        return self._clock.wall_ms()

    def next_dot(self) -> Dot:
        """Return the name of this node's next entry."""
        return Dot(self.origin, self.seen(self.origin) + 1)

    def seen(self, origin: str) -> int:
        """Return the last seq of an origin that is in the log."""
        known = self.memory.origins.get(origin)
        return known.seq if known else 0

    def append(self, entry: Entry, bodies: Sequence[StoredBody], *, applied: bool) -> None:
        """Write the next entry of its origin to the log, with the bodies that came with it."""
        assert entry.dot.seq == self.seen(entry.dot.origin) + 1, "an origin's entries come without gaps"
        for stored in bodies:
            write_body(self.connection, stored)
        body = entry.pack()
        size_bytes = len(body) + sum(stored.size_bytes for stored in bodies)
        origin = self.memory.origins.setdefault(entry.dot.origin, Origin())
        origin.seq, origin.offset_bytes = entry.dot.seq, origin.offset_bytes + size_bytes
        row = (*entry.dot, entry.time, entry.mailbox_id, applied, origin.offset_bytes, body)
        try:
            cursor = self.connection.execute(_APPEND, row)
        except sqlite3.IntegrityError as error:
            raise WrongCountError(f"{error}: table origin counts fewer entries than the log has") from error
        position = cursor.lastrowid
        assert position is not None
        self._clock.observe(entry.time)
        if not applied:
            self.let_wait(entry)
        self.commit.context[entry.dot.origin] = entry.dot.seq
        came = {stored.content_hash: stored for stored in bodies}
        self.commit.logged.append(Logged(position, entry, len(body), came))

    def correct(self, entry: Entry, right: Entry) -> None:
        """Replace an entry of the log by one that names other bodies of messages."""
        (name, seq), packed = entry.dot, right.pack()
        query = "SELECT length(body) FROM log WHERE origin = ? AND seq = ?"
        ((before,),) = self.connection.execute(query, entry.dot)
        self.connection.execute("UPDATE log SET body = ? WHERE origin = ? AND seq = ?", (packed, name, seq))
        if more := len(packed) - before + right.bodies_bytes - entry.bodies_bytes:  # seldom: it changes all later rows
            self.connection.execute(
                "UPDATE log SET offset_bytes = offset_bytes + ? WHERE origin = ? AND seq >= ?", (more, name, seq)
            )
            self.connection.execute("UPDATE origin SET offset_bytes = offset_bytes + ? WHERE name = ?", (more, name))
            self.memory.origins[name].offset_bytes += more
        self.commit.corrected = True

    def keeps_waiting(self, chain_id: bytes) -> bool:
        """Return True if entries of the chain may wait or be abandoned. Looked up once: of most chains none does."""
        chain = self.chain(chain_id)
        if chain is None:
            return True
        if chain.keeps_waiting is None:
            chain.keeps_waiting = chains.keeps_waiting(self.connection, chain_id)
        return chain.keeps_waiting

    def let_wait(self, entry: Entry) -> None:
        """Let a logged entry wait until its predecessors are applied."""
        if (chain := self.chain(entry.mailbox_id)) is not None:
            chain.keeps_waiting = True
        spare_bodies_of(self.connection, entry)
        self.connection.executemany(
            "INSERT INTO waiting (chain, after_origin, after_seq, origin, seq) VALUES (?,?,?,?,?)",
            [(entry.mailbox_id, *before, *entry.dot) for before in dict.fromkeys(entry.predecessors) or (NONE_BEFORE,)],
        )

    def forget_entries(self, origin: str, upto: int) -> None:
        """Let the origin's log begin after `upto`; no node needs the earlier entries any more."""
        self.lose_entries(origin, upto, 0)

    def lose_entries(self, origin: str, upto: int, lost: int) -> None:
        """Let the origin's log begin after `upto`, although `lost` of the earlier entries were lost, not collected."""
        known = self.memory.origins[origin]
        known.collected, known.lost = upto, lost
        self.commit.collected[origin] = upto

    def reread_waiting(self, query: Callable[[sqlite3.Connection], dict[Dot, bytes]]) -> None:
        """Set `Commit.waiting` from the database when this transaction ends."""
        self._read_waiting = query

    def count_usage(self, user: str) -> None:
        """Set `Commit.usage` of this user when this transaction ends."""
        self._users_to_count.add(user)

    def extend_count(self) -> None:
        """Count the next slice of what this node shows when this transaction ends."""
        self._count_grows = True

    def count_anew(self) -> None:
        """Forget the tally: what rows have added to it is not known, because they were damaged."""
        self._tally, self._count = None, NO_COUNT
        for chain in self.memory.chains.values():
            chain.tallied = None

    def write_chains(self) -> None:
        """Write changed chains now, for queries that join their rows."""
        for chain in self._changed_chains.values():
            chains.save(self.connection, chain)

    def finish(self) -> Commit:
        """Write the rows kept in memory. Called once, before COMMIT."""
        self.write_chains()
        self._note_unproven()
        self._note_usage()
        self._note_tally()
        for name in self.commit.context | self.commit.collected:
            origin = self.memory.origins[name]
            self.connection.execute(
                "INSERT OR REPLACE INTO origin (name, seq, offset_bytes, collected, lost) VALUES (?,?,?,?,?)",
                (name, origin.seq, origin.offset_bytes, origin.collected, origin.lost),
            )
        if self._read_waiting is not None:
            self.commit.waiting = self._read_waiting(self.connection)
        return self.commit

    def _note_usage(self) -> None:
        growth = self.commit.growth
        for chain_id, before in self._held_before.items():
            chain = self._changed_chains[chain_id]
            if (more := chain.usage.minus(before)) != Usage():
                growth[chain.user] = growth.get(chain.user, Usage()).plus(more)
        self.commit.usage = {user: chains.usage(self.connection, user) for user in self._users_to_count}

    def _is_counted(self, chain_id: bytes) -> bool:
        """Return True if the tally, or the count under way, has what the mailbox or tree adds to it."""
        return self._tally is not None or self._count.has(chain_id)

    def _note_tally(self) -> None:
        changes = dict[bytes, tuple[Shown, Shown]]()
        for chain_id, before in self._shown_before.items():
            chain = self._changed_chains[chain_id]
            chain.tallied = shown(chain) if self._is_counted(chain_id) else None
            if chain.tallied is not None:
                changes[chain_id] = (before, chain.tallied)
        commit, count = self.commit, self._count
        if self._tally is not None:
            commit.digests = {chain_id: digest for chain_id, (_, (digest, _)) in changes.items()}
        tally = None if self._tally is None else self._tally.changed(changes.values())
        counted = (change for chain_id, change in changes.items() if count.has(chain_id))
        count = count._replace(tally=count.tally.changed(counted))
        if self._count_grows:
            try:
                count = count.extended(self.connection)
            except DatabaseDamagedError as error:  # of a row that no job of this transaction has asked for
                commit.uncounted = error
        if count.is_whole:
            commit.has_counted, commit.was_miscounted = True, tally not in {None, count.tally}
            tally, count = count.tally, NO_COUNT
        commit.tally, commit.count = tally, count
        if tally != self.memory.tally:
            tallies.save(self.connection, tally)

    def _note_unproven(self) -> None:
        """Record heads taken over from other nodes as unproven: the log does not lead to them; a checkpoint will."""
        adopted = [entry for entry in self.commit.applied if entry.dot in self.commit.adopted]
        self.connection.executemany(
            "INSERT OR REPLACE INTO unproven (chain, modseq) VALUES (?,?)",
            [(entry.mailbox_id, entry.modseq) for entry in adopted],
        )

    def _remember(self, chain: Chain) -> None:
        while len(self.memory.chains) >= CHAINS_IN_MEMORY:
            oldest = next(iter(self.memory.chains))
            if oldest in self._changed_chains:
                break
            del self.memory.chains[oldest]
        self.memory.chains[chain.id] = chain
