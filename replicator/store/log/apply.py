"""Application of entries to the projections; only this code writes to them (design sections 3 and 6).

An entry applies only if its chain's head is one of its predecessors, under the history that it names. Other entries
wait in the log and are tried again whenever their chain gets a new head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgpack

from protocol.values import Dot, UidSet, context_of, covers
from replicator.mail.view import SEEN, Message, ViewChange
from replicator.store.bodies.body_rows import StoredBody, note_lacking
from replicator.store.db import chain as chains
from replicator.store.db import entry_validation, queries
from replicator.store.db.chain import Chain
from replicator.store.db.rows.message_rows import (
    INTO_BY_UID,
    ROW_COLUMNS,
    DamagedRowError,
    columns_of,
    fingerprint_from,
    message_of,
    row_from,
)
from replicator.store.db.transaction import Transaction
from replicator.store.gc import expunged
from replicator.store.log.apply_tree import apply_to_tree
from resync import row as rows
from resync.clock import COUNTER_BITS
from resync.entry import (
    Entry,
    FlagAdd,
    FlagDel,
    MailAdd,
    MailDel,
    Merge,
    Raise,
)
from resync.row import Row

_BY_GUID = (
    f"SELECT {', '.join(f'u.{column}' for column in ROW_COLUMNS.split(', '))} FROM by_guid g"
    " JOIN by_uid u ON u.mailbox = g.mailbox AND u.uid = g.uid WHERE g.guid = ? AND g.mailbox = ?"
)

_NOT_APPLIED = (  # by the two partial indices
    "SELECT origin, seq FROM log WHERE chain = ? AND applied = 0"
    " UNION ALL SELECT origin, seq FROM log WHERE chain = ? AND applied = 2"
)

APPLIED, ABANDONED = 1, 2
"""Values of the log's column `applied`; 0: the entry waits."""


def receive(tx: Transaction, entry: Entry, bodies: Sequence[StoredBody], *, hold: bool = False) -> None:
    """Append an entry to the log, and apply it and every entry that waited for it, as far as possible.

    `hold`: let the entry wait in any case, because the state that it would change is damaged.

    An entry that is already here is ignored; so is one that would leave a gap in its origin's sequence, since it will
    come again. Raises HistoryError for an impossible entry; one that contradicts its predecessor waits like any other
    branch.
    """
    if entry.dot.seq != tx.seen(entry.dot.origin) + 1:
        return
    entry_validation.check_form(entry, tx.origin)
    chain = None if hold else tx.chain(entry.mailbox_id)
    absorbed = chain is not None and chain.has_seen(entry.dot)  # a merge arrived before the branch that it joined
    ready = not hold and not absorbed and fits(tx, entry)
    named = {change.content_hash for change in entry.changes if isinstance(change, MailAdd) and not change.copied}
    tx.append(entry, [stored for stored in bodies if stored.content_hash in named], applied=ready or absorbed)
    if absorbed:
        tx.commit.absorbed.append(entry.dot)
        _keep_unshown(tx, entry, chain, tx.wall_ms())
    _revive(tx, entry.mailbox_id, lambda dot: dot == entry.dot)
    if ready:
        apply_and_release(tx, entry)


def apply_and_release(tx: Transaction, entry: Entry) -> None:
    """Apply an entry, and then the entries that waited for it."""
    apply(tx, entry)
    apply_waiting(tx, entry.mailbox_id)


def fits(tx: Transaction, entry: Entry) -> bool:
    """Return True if the entry names its chain's head and that head's history, and does not contradict it."""
    chain = tx.chain(entry.mailbox_id)
    if chain is None and chains.is_lost(tx.connection, entry.mailbox_id):
        return False
    if chain is None or chain.head is None:
        follows = not entry.predecessors
    else:
        follows = entry.stands_on(chain.head, chain.history)
        if not follows and chain.head in entry.predecessors:
            tx.commit.mismatched[entry.dot] = entry
    return follows and entry_validation.contradiction(tx, chain, entry) is None


def apply(tx: Transaction, entry: Entry, *, adopted: bytes | None = None) -> None:
    """Apply an entry to the projections. It fits, and is in the log or an adoption.

    `adopted`: of an adoption, the history of the head that is taken over.
    """
    in_log = adopted is None
    chain = tx.chain_to_change(entry.mailbox_id, entry.user, entry.uidvalidity)
    risen, seen = chain.risen, dict(chain.context) if entry.is_merge else {}
    work = _Work(tx, chain, entry, in_log=in_log)
    for number, change in enumerate(entry.changes):
        match change:
            case MailAdd():
                work.add(change, number)
            case MailDel():
                work.expunge(change.uids)
            case FlagAdd():
                work.set_flags(change.uids, change.flags, value=True)
            case FlagDel():
                work.set_flags(change.uids, change.flags, value=False)
            case Merge():
                work.merge(change)
            case Raise():
                chain.uidnext = max(chain.uidnext, change.uidnext)
            case _:
                apply_to_tree(tx, chain, entry, change)
    chain.advance(entry.dot, entry.modseq, entry.time, entry.history if adopted is None else adopted)
    tx.commit.applied.append(entry)
    if not in_log:
        tx.commit.adopted.add(entry.dot)
    if entry.is_merge:
        _absorb(tx, chain, work.expunged_ms())
        _revive(tx, chain.id, lambda dot: chain.has_seen(dot) and not covers(seen, {dot.origin: dot.seq}))
    if not entry.is_tree:
        tx.commit.changes.append(work.view_change())
        if chain.risen != risen or (not chain.messages and _is_deleted(tx, chain.id)):
            tx.commit.retired.append(chain.id)


def _is_deleted(tx: Transaction, mailbox_id: bytes) -> bool:
    row = tx.connection.execute("SELECT deleted FROM folder WHERE mailbox_id = ?", (mailbox_id,)).fetchone()
    return row is not None and bool(row[0])


def apply_waiting(tx: Transaction, chain_id: bytes) -> None:
    """Apply the entries that waited for the chain's present head, then those that waited for these, and so on."""
    while (entry := _next_waiting(tx, chain_id)) is not None:
        _release(tx, chain_id, entry.dot, entry.predecessors)
        apply(tx, entry)


def abandon(tx: Transaction, chain_id: bytes, dots: Iterable[Dot]) -> None:
    """Mark entries that still wait as abandoned: they can never be applied."""
    chain = tx.chain(chain_id)
    query = "SELECT after_origin, after_seq FROM waiting WHERE chain = ? AND origin = ? AND seq = ?"
    for dot in dots:
        befores = [Dot(*row) for row in tx.connection.execute(query, (chain_id, *dot))]
        if befores and not (chain is not None and chain.has_seen(dot)):
            _release(tx, chain_id, dot, befores, ABANDONED)
            tx.commit.absorbed.append(dot)
            tx.commit.abandoned[dot] = chain_id


def _revive(tx: Transaction, chain_id: bytes, has_come: Callable[[Dot], bool]) -> None:
    """Let abandoned entries wait again if the predecessor that they lacked has arrived.

    This happens when a disk that was given up comes back: the log, a merge or an adoption brings its entries.
    """
    if not tx.keeps_waiting(chain_id):
        return
    revived: set[Dot] = set()
    for entry in sorted(_abandoned(tx, chain_id), key=lambda entry: entry.modseq):
        if any(dot in revived or has_come(dot) for dot in entry.predecessors):
            tx.connection.execute("UPDATE log SET applied = 0 WHERE origin = ? AND seq = ?", entry.dot)
            tx.let_wait(entry)
            tx.commit.revived[entry.dot] = entry.mailbox_id
            revived.add(entry.dot)


def _abandoned(tx: Transaction, chain_id: bytes) -> Iterator[Entry]:
    """Yield the readable abandoned entries of a mailbox or tree."""
    query = "SELECT origin, seq, body FROM log WHERE chain = ? AND applied = 2"
    for *dot, body in tx.connection.execute(query, (chain_id,)).fetchall():
        with suppress(DamagedRowError):  # an unreadable entry is as good as lost, and must not block the others
            yield queries.entry_of(Dot(*dot), body)


def _release(tx: Transaction, chain_id: bytes, dot: Dot, waited_for: Iterable[Dot], applied: int = APPLIED) -> None:
    """Mark an entry as no longer waiting."""
    tx.connection.execute("UPDATE log SET applied = ? WHERE origin = ? AND seq = ?", (applied, *dot))
    tx.connection.executemany(
        "DELETE FROM waiting WHERE chain = ? AND after_origin = ? AND after_seq = ? AND origin = ? AND seq = ?",
        [(chain_id, *before, *dot) for before in waited_for],
    )


def _next_waiting(tx: Transaction, chain_id: bytes) -> Entry | None:
    if not tx.keeps_waiting(chain_id):
        return None
    chain = tx.chain(chain_id)
    assert chain is not None
    assert chain.head is not None
    cursor = tx.connection.execute(
        "SELECT l.origin, l.seq, l.body FROM waiting w JOIN log l ON l.origin = w.origin AND l.seq = w.seq"
        " WHERE w.chain = ? AND w.after_origin = ? AND w.after_seq = ? ORDER BY l.position",
        (chain_id, *chain.head),
    )
    waiting = (queries.entry_of(Dot(origin, seq), body) for origin, seq, body in cursor)
    return next((entry for entry in waiting if fits(tx, entry)), None)


def _absorb(tx: Transaction, chain: Chain, time_ms: int) -> None:
    """Mark entries that a merge has joined as neither waiting nor abandoned, including those lost from the log."""
    in_log = tx.connection.execute(_NOT_APPLIED, (chain.id, chain.id))
    waited_for: dict[Dot, list[Dot]] = {Dot(*row): [] for row in in_log}
    query = "SELECT origin, seq, after_origin, after_seq FROM waiting WHERE chain = ?"
    for origin, seq, *before in tx.connection.execute(query, (chain.id,)):
        waited_for.setdefault(Dot(origin, seq), []).append(Dot(*before))
    for dot, befores in waited_for.items():
        if chain.has_seen(dot):
            _release(tx, chain.id, dot, befores)
            tx.commit.absorbed.append(dot)
            with suppress(DamagedRowError):  # its messages are unreadable, but the merge still applies
                if (entry := queries.entry_at(tx.connection, dot)) is not None:
                    _keep_unshown(tx, entry, chain, time_ms)


def _keep_unshown(tx: Transaction, entry: Entry, chain: Chain | None, time_ms: int) -> None:
    """Keep, as expunged, messages that another branch added and the merge does not show: they were expunged there."""
    added = [change for change in entry.changes if isinstance(change, MailAdd)]
    gone = [add for add in added if queries.uid_of_guid(tx.connection, add.guid, entry.mailbox_id) is None]
    if gone and chain is not None:
        expunged.keep_unshown(tx.connection, chain.id, gone, time_ms)
        chain.keeps_expunged = True


class _Work:
    """The application of one entry to one mailbox."""

    def __init__(self, tx: Transaction, chain: Chain, entry: Entry, *, in_log: bool) -> None:
        self._tx = tx
        self._in_log = in_log
        self._connection = tx.connection
        self._chain = chain
        self._entry = entry
        self._changed: dict[int, Message] = {}
        self._expunged: set[int] = set()

    def add(self, change: MailAdd, number: int) -> None:
        entry = self._entry
        flags = rows.set_flags({}, change.flags, entry.stamp, value=True)
        row = Row(
            change.uid, entry.dot, number, change.guid, entry.dot, entry.modseq, flags,
            change.received_ms, change.size_bytes, change.content_hash, saved_ms=entry.saved_ms,
        )  # fmt: skip
        self._put([row])
        if change.copied:
            note_lacking(self._connection, [row])  # the source message may never have been here

    def expunge(self, uids: UidSet) -> None:
        rows = list(self._rows(uids))
        self._take(rows)
        self._keep(rows)

    def merge(self, merge: Merge) -> None:
        """Step to a merge from either of its heads: replace whatever differs from this node's rows."""
        chain = self._chain
        wanted = {row.guid: row for row in merge.rows}
        known = (*wanted, *merge.removed) if entry_validation.has_rows(self._tx, chain.id) else ()
        present = {row.guid: row for guid in known if (row := self._by_guid(guid)) is not None}
        differing = [guid for guid in (*wanted, *merge.removed) if present.get(guid) != wanted.get(guid)]
        taken = [present[guid] for guid in differing if guid in present]
        self._take(taken)
        self._keep([row for row in taken if row.guid not in wanted])
        put = [wanted[guid] for guid in differing if guid in wanted]
        self._put(put)
        note_lacking(self._connection, put)
        if any(_differs_under_its_uid(row, wanted.get(row.guid)) for row in taken):
            self._tx.commit.retired.append(chain.id)  # clients have read, and do not read again, what was wrong
        chain.uidnext, chain.risen = max(chain.uidnext, merge.uidnext), merge.risen
        chain.context = context_of(merge.context)

    def set_flags(self, uids: UidSet, flags: Sequence[str], *, value: bool) -> None:
        for row in list(self._rows(uids)):
            states = rows.set_flags(row.flags, flags, self._entry.stamp, value=value)
            changed = row._replace(flags=states, modseq=self._entry.modseq)
            fingerprint = changed.fingerprint()
            self._connection.execute(
                "UPDATE by_uid SET flags = ?, modseq = ?, fingerprint = ? WHERE mailbox = ? AND uid = ?",
                (msgpack.packb(states), changed.modseq, rows.to_bytes(fingerprint), self._chain.id, row.uid),
            )
            self._uncount(row)
            self._count(changed, fingerprint)

    def expunged_ms(self) -> int:
        """Return the expunge time of the removed messages.

        It is the same at all nodes, except for an adoption, which carries no time of its own.
        """
        now_ms = self._tx.wall_ms()  # the stamp may come from a clock that ran ahead
        return min(self._entry.time >> COUNTER_BITS, now_ms) if self._in_log else now_ms

    def view_change(self) -> ViewChange:
        chain = self._chain
        return ViewChange(
            mailbox_id=chain.id,
            modseq=chain.highestmodseq,
            uidnext=chain.uidnext,
            changed=tuple(sorted(self._changed.values())),
            expunged=tuple(sorted(self._expunged)),
            head=chain.head,
        )

    def _put(self, put: Sequence[Row]) -> None:
        chain = self._chain
        columns = [columns_of(row) for row in put]
        self._connection.executemany(
            f"INSERT {INTO_BY_UID}",
            ((chain.id, *row) for row in columns),
        )
        self._connection.executemany(
            "INSERT INTO by_guid (guid, mailbox, uid, origin, seq, change) VALUES (?,?,?,?,?,?)",
            ((row.guid, chain.id, row.uid, *row.dot, row.change) for row in put),
        )
        if self._keeps_expunged():
            expunged.take_back(self._connection, chain.id, (row.guid for row in put))
        for row, (*_, fingerprint) in zip(put, columns, strict=True):
            chain.uidnext = max(chain.uidnext, row.uid + 1)
            chain.messages += 1
            chain.size_bytes += row.size_bytes
            self._expunged.discard(row.uid)
            self._count(row, fingerprint_from(fingerprint))

    def _take(self, taken: Sequence[Row]) -> None:
        chain = self._chain
        self._connection.executemany(
            "DELETE FROM by_uid WHERE mailbox = ? AND uid = ?", ((chain.id, row.uid) for row in taken)
        )
        self._connection.executemany(
            "DELETE FROM by_guid WHERE guid = ? AND mailbox = ?", ((row.guid, chain.id) for row in taken)
        )
        for row in taken:
            chain.messages -= 1
            chain.size_bytes -= row.size_bytes
            self._uncount(row)
            self._changed.pop(row.uid, None)
            self._expunged.add(row.uid)

    def _keep(self, gone: Sequence[Row]) -> None:
        if gone:
            expunged.keep(self._connection, self._chain.id, gone, self.expunged_ms())
            self._chain.keeps_expunged = True

    def _keeps_expunged(self) -> bool:
        """Return True if the table `expunged` may have rows of the mailbox.

        Looked up once: most mailboxes have none.
        """
        if self._chain.keeps_expunged is None:
            self._chain.keeps_expunged = expunged.are_kept(self._connection, self._chain.id)
        return self._chain.keeps_expunged

    def _by_guid(self, guid: bytes) -> Row | None:
        found = self._connection.execute(_BY_GUID, (guid, self._chain.id)).fetchone()
        return None if found is None else row_from(found)

    def _count(self, row: Row, fingerprint: int) -> None:
        """Add a new row to the chain's counters."""
        self._chain.unseen += not _is_seen(row)
        self._chain.fingerprint = rows.add(self._chain.fingerprint, fingerprint)
        self._changed[row.uid] = message_of(row)

    def _uncount(self, row: Row) -> None:
        """Remove a leaving row from the chain's counters."""
        self._chain.unseen -= not _is_seen(row)
        self._chain.fingerprint = rows.remove(self._chain.fingerprint, row.fingerprint())

    def _rows(self, uids: UidSet) -> Iterator[Row]:
        for low, high in uids.ranges:
            cursor = self._connection.execute(
                f"SELECT {ROW_COLUMNS} FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ?",
                (self._chain.id, low, high),
            )
            yield from map(row_from, cursor)


def _differs_under_its_uid(row: Row, other: Row | None) -> bool:
    """Return True if the other node's row of this message has the same UID, but a body or date that is not the same."""
    if other is None or other.uid != row.uid:
        return False
    return (row.content_hash, row.size_bytes, row.received_ms) != (
        other.content_hash,
        other.size_bytes,
        other.received_ms,
    )


def _is_seen(row: Row) -> bool:
    _, _, is_seen = row.flags.get(SEEN, (0, "", False))
    return is_seen
