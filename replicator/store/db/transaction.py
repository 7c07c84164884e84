"""One transaction of the writer: what jobs use to read and change the log and the chains.

Everything here runs in the writer's thread. Rows of chains and origins that changed are kept in memory and
written once, when the transaction ends; after a failure all memory is dropped and read again from disk.

Rule for jobs: raise a MailError or a HistoryError before changing anything, or not at all. Any other error undoes
the whole transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.commands import Parts
from protocol.values import Context, Dot
from replicator.store.bodies.body_rows import StoredText, memory_of, size_of, write_text
from replicator.store.bodies.deletion_candidates import spare_texts_of
from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from replicator.store.db.damage import WrongCountError
from replicator.view import ViewChange
from resync.clock import HybridClock, is_believed
from resync.entry import Change, Entry
from resync.tree import TreeState

_APPEND = "INSERT INTO log (origin, seq, time, chain, applied, offset_bytes, body) VALUES (?,?,?,?,?,?,?)"

NONE_BEFORE = Dot("", 0)
"""What an entry without predecessors waits for, in the table `waiting`: no entry has that name."""

CHAINS_IN_MEMORY = 10_000  # about 1 KiB each


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry that is on this node's disk. `texts`: hash -> the messages that it brought along."""

    position: int
    entry: Entry
    entry_bytes: int  # without texts
    texts: Mapping[bytes, bytes | Parts] = field(default_factory=dict, repr=False)

    @property
    def size_bytes(self) -> int:
        """With the texts, however they are kept."""
        return self.entry_bytes + sum(map(size_of, self.texts.values()))

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory."""
        return self.entry_bytes + sum(map(memory_of, self.texts.values()))


@dataclass(slots=True)
class Commit:
    """What one transaction did, in order; published once it is on disk."""

    logged: list[Logged] = field(default_factory=list)
    applied: list[Entry] = field(default_factory=list)
    adopted: set[Dot] = field(default_factory=set)  # those of them that are steps to another node's head, and in no log
    absorbed: list[Dot] = field(default_factory=list)  # entries of other branches that wait no longer: a merge has them
    abandoned: dict[Dot, bytes] = field(default_factory=dict)  # those of them that no merge has -> their chains
    revived: dict[Dot, bytes] = field(default_factory=dict)  # abandoned before, which wait again -> their chains
    changes: list[ViewChange] = field(default_factory=list)
    retired: list[bytes] = field(default_factory=list)  # mailboxes whose folder is gone or has another UIDVALIDITY
    context: dict[str, int] = field(default_factory=dict)  # origins that grew
    collected: dict[str, int] = field(default_factory=dict)  # origins whose log begins later now
    unsettled_after: dict[str, int] | None = None  # see `pending_resync`, if that has changed
    waiting: dict[Dot, bytes] | None = None  # all entries that wait and their chains, if a job has asked for it


@dataclass(slots=True)
class Origin:
    """How much of one origin's log is here: entries after `collected`, up to `seq`. See `schema`."""

    seq: int = 0
    offset_bytes: int = 0
    collected: int = 0
    lost: int = 0


class Memory:
    """What the writer remembers between transactions so as not to read it again."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.chains: dict[bytes, Chain] = {}
        rows = connection.execute("SELECT name, seq, offset_bytes, collected, lost FROM origin")
        self.origins = {name: Origin(*numbers) for name, *numbers in rows}
        self.tree: tuple[bytes, Dot, TreeState] | None = None  # as the last entry of another node has left it

    def take_tree(self, chain: Chain) -> TreeState | None:
        """The folder tree of which the chain is the head, if it is known. It is forgotten here."""
        known, self.tree = self.tree, None
        return known[2] if known is not None and known[:2] == (chain.id, chain.head) else None


class Transaction:
    """Reads and writes of the jobs of one batch. `origin` names the entries that are numbered here."""

    def __init__(self, connection: sqlite3.Connection, memory: Memory, origin: str, clock: HybridClock) -> None:
        self.connection = connection
        self.memory = memory
        self.commit = Commit()
        self.origin = origin
        self._clock = clock
        self._changed_chains: dict[bytes, Chain] = {}
        self._read_waiting: Callable[[sqlite3.Connection], dict[Dot, bytes]] | None = None

    def chain(self, chain_id: bytes) -> Chain | None:
        """A chain as of now, or None. The caller must not change it."""
        known = self.memory.chains.get(chain_id)
        if known is None and (known := chains.load(self.connection, chain_id)) is not None:
            self._remember(known)
        return known

    def chain_to_change(self, chain_id: bytes, user: str, uidvalidity: int) -> Chain:
        """A chain that is about to get another head; a new one if there is none, and was none: else DamagedRowError."""
        chain = self.chain(chain_id)
        if chain is None:
            chains.check_new(self.connection, chain_id)
            return self.begin_chain(chain_id, user, uidvalidity)
        self._changed_chains[chain_id] = chain
        return chain

    def begin_chain(self, chain_id: bytes, user: str, uidvalidity: int) -> Chain:
        """A new chain, about to get a head. From now on `recent` has a row of it, also if its own row is lost."""
        chain = self._changed_chains[chain_id] = Chain(chain_id, user, uidvalidity)
        self._remember(chain)
        self.connection.execute("INSERT OR IGNORE INTO recent (mailbox, uidnext) VALUES (?, 1)", (chain_id,))
        return chain

    def next_entry(self, chain_id: bytes, user: str, uidvalidity: int, changes: Sequence[Change]) -> Entry:
        """An entry of this node on its chain's head, not yet in the log. Raises DamagedRowError if that is lost."""
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
        )

    def observe(self, time: int) -> None:
        """A stamp came that no entry in the log has: later ones are above it, also after a restart."""
        self._clock.observe(time)
        self.connection.execute("INSERT OR REPLACE INTO clock (id, time) VALUES (1, ?)", (self._clock.last,))

    def begin_log_after(self, context: Context) -> None:
        """The log goes on after these entries: what they did is shown here already, and they do not come any more.

        Of origins that go further here, what was collected of them stays; of the others nothing is in the log. What
        this node numbers itself is never further elsewhere, whoever says so.
        """
        for name, seq in context.items():
            if name != self.origin and self.seen(name) < seq:
                origin = self.memory.origins.setdefault(name, Origin())
                origin.seq = self.commit.context[name] = seq
                self.forget_entries(name, seq)

    def wall_ms(self) -> int:
        """The time of this machine's clock."""
        return self._clock.wall_ms()

    def next_dot(self) -> Dot:
        """The name of this node's next entry."""
        return Dot(self.origin, self.seen(self.origin) + 1)

    def seen(self, origin: str) -> int:
        """The last seq of an origin that is in the log."""
        known = self.memory.origins.get(origin)
        return known.seq if known else 0

    def append(self, entry: Entry, texts: Sequence[StoredText], *, applied: bool) -> None:
        """Write the next entry of its origin to the log, with the message texts that came with it."""
        assert entry.dot.seq == self.seen(entry.dot.origin) + 1, "an origin's entries come without gaps"
        for text in texts:
            write_text(self.connection, text)
        body = entry.pack()
        size_bytes = len(body) + sum(text.size_bytes for text in texts)
        origin = self.memory.origins.setdefault(entry.dot.origin, Origin())
        origin.seq, origin.offset_bytes = entry.dot.seq, origin.offset_bytes + size_bytes
        row = (*entry.dot, entry.time, entry.mailbox_id, applied, origin.offset_bytes, body)
        try:
            cursor = self.connection.execute(_APPEND, row)
        except sqlite3.IntegrityError as error:
            raise WrongCountError(f"{error}: table origin counts less than the log has") from error
        position = cursor.lastrowid
        assert position is not None
        self._clock.observe(entry.time)
        if not applied:
            self.let_wait(entry)
        self.commit.context[entry.dot.origin] = entry.dot.seq
        messages = {text.content_hash: text.message for text in texts}
        self.commit.logged.append(Logged(position, entry, len(body), messages))

    def let_wait(self, entry: Entry) -> None:
        """The entry is in the log, and is to be applied when what it stands on is here."""
        spare_texts_of(self.connection, entry)
        self.connection.executemany(
            "INSERT INTO waiting (chain, after_origin, after_seq, origin, seq) VALUES (?,?,?,?,?)",
            [(entry.mailbox_id, *before, *entry.dot) for before in entry.predecessors or (NONE_BEFORE,)],
        )

    def forget_entries(self, origin: str, upto: int) -> None:
        """The log begins after these entries of the origin now; nobody needs what they were."""
        self.lose_entries(origin, upto, 0)

    def lose_entries(self, origin: str, upto: int, lost: int) -> None:
        """The log begins after these entries of the origin now, although so many of them are lost."""
        known = self.memory.origins[origin]
        known.collected, known.lost = upto, lost
        self.commit.collected[origin] = upto

    def reread_waiting(self, query: Callable[[sqlite3.Connection], dict[Dot, bytes]]) -> None:
        """Let `Commit.waiting` be what the disk says when this transaction ends."""
        self._read_waiting = query

    def write_chains(self) -> None:
        """Write changed chains now, for queries that join their rows."""
        for chain in self._changed_chains.values():
            chains.save(self.connection, chain)

    def finish(self) -> Commit:
        """Write what was kept in memory. Called once, before COMMIT."""
        self.write_chains()
        self._note_unproven()
        for name in self.commit.context | self.commit.collected:
            origin = self.memory.origins[name]
            self.connection.execute(
                "INSERT OR REPLACE INTO origin (name, seq, offset_bytes, collected, lost) VALUES (?,?,?,?,?)",
                (name, origin.seq, origin.offset_bytes, origin.collected, origin.lost),
            )
        if self._read_waiting is not None:
            self.commit.waiting = self._read_waiting(self.connection)
        return self.commit

    def _note_unproven(self) -> None:
        """The log does not lead to what was taken over; the next checkpoint will."""
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
