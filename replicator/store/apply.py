"""Carrying entries into the projections: the only code that writes to them (design sections 3 and 6).

An entry applies only where the chain's head is one of its predecessors. What does not fit waits in the log and is
tried again whenever its chain gets another head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgpack

from protocol.values import Dot, UidSet
from replicator.store import history
from replicator.store.chain import Chain
from replicator.store.content import StoredText
from replicator.store.transaction import Transaction
from replicator.view import SEEN, Message, ViewChange
from resync import row as rows
from resync.entry import (
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
)
from resync.row import Row


def receive(tx: Transaction, entry: Entry, texts: Sequence[StoredText]) -> None:
    """Take an entry into the log and apply it, and all that waited for it, as far as that goes.

    One that is already here is ignored; so is one that leaves a gap in its origin's sequence: it will come again.
    Raises HistoryError for one that cannot be; one that contradicts its predecessor waits like any other branch.
    """
    if entry.dot.seq != tx.seen(entry.dot.origin) + 1:
        return
    history.check_form(entry, tx.origin)
    ready = fits(tx, entry)
    named = {change.content_hash for change in entry.changes if isinstance(change, MailAdd) and not change.copied}
    tx.append(entry, [text for text in texts if text.content_hash in named], applied=ready)
    if ready:
        apply(tx, entry)
        _apply_waiting(tx, entry.mailbox_id)


def fits(tx: Transaction, entry: Entry) -> bool:
    """Whether the entry stands on its chain's head, and can."""
    chain = tx.chain(entry.mailbox_id)
    head = chain.head if chain else None
    follows = head in entry.predecessors if entry.predecessors else head is None
    return follows and history.contradiction(tx, chain, entry) is None


def apply(tx: Transaction, entry: Entry) -> None:
    """Change the projections. The entry is in the log and fits."""
    chain = tx.chain_to_change(entry.mailbox_id, entry.user, entry.uidvalidity)
    work = _Work(tx, chain, entry)
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
            case _:
                _apply_to_tree(tx, chain, entry, change)
    chain.advance(entry.dot, entry.modseq)
    tx.commit.applied.append(entry)
    if not entry.is_tree:
        tx.commit.changes.append(work.view_change())


def _apply_waiting(tx: Transaction, chain_id: bytes) -> None:
    """Apply the entries that waited for the chain's present head, and for those, and so on."""
    while (found := _next_waiting(tx, chain_id)) is not None:
        position, entry = found
        tx.connection.execute("UPDATE log SET applied = 1 WHERE position = ?", (position,))
        for dot in entry.predecessors:
            tx.connection.execute(
                "DELETE FROM waiting WHERE chain = ? AND origin = ? AND seq = ? AND position = ?",
                (chain_id, *dot, position),
            )
        apply(tx, entry)


def _next_waiting(tx: Transaction, chain_id: bytes) -> tuple[int, Entry] | None:
    chain = tx.chain(chain_id)
    assert chain is not None
    assert chain.head is not None
    cursor = tx.connection.execute(
        "SELECT l.position, l.origin, l.seq, l.body FROM waiting w JOIN log l ON l.position = w.position"
        " WHERE w.chain = ? AND w.origin = ? AND w.seq = ? ORDER BY w.position",
        (chain_id, *chain.head),
    )
    waiting = ((position, Entry.unpack(Dot(origin, seq), body)) for position, origin, seq, body in cursor)
    return next((item for item in waiting if fits(tx, item[1])), None)


ROW_COLUMNS = (
    "uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, received_ms, size_bytes, content_hash"
)


def row_from(columns: tuple[object, ...]) -> Row:
    """A row from `ROW_COLUMNS`."""
    uid, origin, seq, change, guid, claim_origin, claim_seq, modseq, flags, *rest = columns
    return Row(
        cast("int", uid),
        Dot(cast("str", origin), cast("int", seq)),
        cast("int", change),
        cast("bytes", guid),
        Dot(cast("str", claim_origin), cast("int", claim_seq)),
        cast("int", modseq),
        msgpack.unpackb(flags, use_list=False),
        *cast("tuple[int, int, bytes]", tuple(rest)),
    )


def message_of(row: Row) -> Message:
    """What a client may see of a row."""
    return Message(
        row.uid, row.guid, row.modseq, row.visible_flags(), row.received_ms, row.size_bytes, row.content_hash,
        row.dot, row.change,
    )  # fmt: skip


class _Work:
    """One entry on its way into one mailbox."""

    def __init__(self, tx: Transaction, chain: Chain, entry: Entry) -> None:
        self._connection = tx.connection
        self._chain = chain
        self._entry = entry
        self._changed: dict[int, Message] = {}
        self._expunged: list[int] = []

    def add(self, change: MailAdd, number: int) -> None:
        entry, chain = self._entry, self._chain
        flags = rows.set_flags({}, change.flags, entry.stamp, value=True)
        row = Row(
            change.uid, entry.dot, number, change.guid, entry.dot, entry.modseq, flags,
            change.received_ms, change.size_bytes, change.content_hash,
        )  # fmt: skip
        self._connection.execute(
            f"INSERT INTO by_uid (mailbox, {ROW_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608 - constants
            (chain.id, row.uid, *row.dot, number, row.guid, *row.claim, row.modseq, msgpack.packb(flags), *row[7:]),
        )
        self._connection.execute(
            "INSERT INTO by_guid (guid, mailbox, uid, origin, seq, change) VALUES (?,?,?,?,?,?)",
            (row.guid, chain.id, row.uid, *row.dot, number),
        )
        chain.uidnext = max(chain.uidnext, change.uid + 1)
        chain.messages += 1
        chain.size_bytes += row.size_bytes
        self._count(row, 1)

    def expunge(self, uids: UidSet) -> None:
        chain = self._chain
        for row in list(self._rows(uids)):
            self._connection.execute("DELETE FROM by_uid WHERE mailbox = ? AND uid = ?", (chain.id, row.uid))
            self._connection.execute("DELETE FROM by_guid WHERE guid = ? AND mailbox = ?", (row.guid, chain.id))
            chain.messages -= 1
            chain.size_bytes -= row.size_bytes
            self._count(row, -1)
            self._changed.pop(row.uid, None)
            self._expunged.append(row.uid)

    def set_flags(self, uids: UidSet, flags: Sequence[str], *, value: bool) -> None:
        for row in list(self._rows(uids)):
            states = rows.set_flags(row.flags, flags, self._entry.stamp, value=value)
            changed = row._replace(flags=states, modseq=self._entry.modseq)
            self._connection.execute(
                "UPDATE by_uid SET flags = ?, modseq = ? WHERE mailbox = ? AND uid = ?",
                (msgpack.packb(states), changed.modseq, self._chain.id, row.uid),
            )
            self._count(row, -1)
            self._count(changed, 1)

    def view_change(self) -> ViewChange:
        chain = self._chain
        return ViewChange(
            chain.id, chain.highestmodseq, chain.uidnext, tuple(self._changed.values()), tuple(self._expunged)
        )

    def _count(self, row: Row, sign: int) -> None:
        """Carry a row that came or went into the chain's counters."""
        chain = self._chain
        message = message_of(row)
        chain.unseen += sign * (SEEN not in message.flags)
        combine = rows.add if sign > 0 else rows.remove
        chain.fingerprint = combine(chain.fingerprint, row.fingerprint())
        if sign > 0:
            self._changed[row.uid] = message

    def _rows(self, uids: UidSet) -> Iterator[Row]:
        for low, high in uids.ranges:
            cursor = self._connection.execute(
                f"SELECT {ROW_COLUMNS} FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ?",  # noqa: S608 - constants
                (self._chain.id, low, high),
            )
            yield from map(row_from, cursor)


FolderRow = tuple[bytes, str, str, int, int, int, str]
"""The columns of `folder`, in order."""


def _apply_to_tree(
    tx: Transaction,
    chain: Chain,
    entry: Entry,
    change: FolderCreate | FolderRename | FolderDelete | FolderSubscribe,
) -> None:
    stamp = entry.stamp
    match change:
        case FolderCreate(mailbox_id, name, uidvalidity):
            _write_folder(tx, chain, None, (mailbox_id, entry.user, name, uidvalidity, 0, *stamp))
        case FolderRename(mailbox_id, name):
            old = _folder(tx, mailbox_id)
            _write_folder(tx, chain, old, (*old[:2], name, old[3], old[4], *stamp))
        case FolderDelete(mailbox_id):
            old = _folder(tx, mailbox_id)
            _write_folder(tx, chain, old, (*old[:4], 1, *stamp))
            if (mailbox := tx.chain(mailbox_id)) is None or not mailbox.messages:
                tx.commit.retired.append(mailbox_id)
        case FolderSubscribe(name, subscribed):
            key = (entry.user, name)
            before = tx.connection.execute(
                "SELECT user, name, subscribed, time, sid FROM subscription WHERE user = ? AND name = ?", key
            ).fetchone()
            after = (*key, int(subscribed), *stamp)
            tx.connection.execute("INSERT OR REPLACE INTO subscription VALUES (?,?,?,?,?)", after)
            _replace_in_tree(chain, before, after)


def _folder(tx: Transaction, mailbox_id: bytes) -> FolderRow:
    row: FolderRow | None = tx.connection.execute(
        "SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder WHERE mailbox_id = ?", (mailbox_id,)
    ).fetchone()
    assert row is not None, "numbering and `history` have looked"
    return row


def _write_folder(tx: Transaction, chain: Chain, before: FolderRow | None, after: FolderRow) -> None:
    verb = "INSERT" if before is None else "REPLACE"
    tx.connection.execute(f"{verb} INTO folder VALUES (?,?,?,?,?,?,?)", after)
    _replace_in_tree(chain, before, after)


def _replace_in_tree(chain: Chain, before: tuple[object, ...] | None, after: tuple[object, ...]) -> None:
    if before is not None:
        chain.fingerprint = rows.remove(chain.fingerprint, rows.fingerprint(before))
    chain.fingerprint = rows.add(chain.fingerprint, rows.fingerprint(after))
