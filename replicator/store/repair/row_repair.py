"""Repair of the damage that a check has found, in the writer's turn.

With `apply`, the only code that writes to the projections. A mailbox or tree is repaired only while its row is still
the one that was compared, so the node has not changed it since. Sessions that have a repaired mailbox open are ended,
since their clients may have seen damage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from protocol.values import Dot
from replicator.store.bodies.body_rows import note_lacking
from replicator.store.checkpoints import catalog
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.db.rows.message_rows import columns_of
from replicator.store.db.transaction import Transaction
from replicator.store.gc import orphaned_bodies
from replicator.store.log.apply import apply_waiting
from replicator.store.log.replay import Base
from replicator.store.repair.mailbox_check import PUT_ROW, Defect, LogComparison, exhausted, stored_chain
from resync import row as rows
from resync.entry import Change, Entry, MailAdd, Merge
from resync.row import Row

_SHOWN = {"by_uid", "chain", "folder"}
"""Tables with content that clients see."""


def mend(tx: Transaction, comparison: LogComparison) -> bool:
    """Repair the mailbox or tree from the log. Return False if it has changed and must be compared again."""
    tx.write_chains()
    if stored_chain(tx.connection, comparison.chain_id) != comparison.stored:
        return False
    mend_strays(tx, comparison.damages)
    if comparison.chain is not None and any(damage.kind == "chain" for damage in comparison.damages):
        _set_chain(tx, comparison.chain)
    elif comparison.chain is not None and comparison.chain.head is not None:
        apply_waiting(tx, comparison.chain_id)  # entries that waited because their target was damaged
    return True


def compare_and_mend(tx: Transaction, chain_id: bytes, base: Base | None = None, *, doubted: bool) -> LogComparison:
    """Compare and repair in one job, while the writer waits: for a mailbox that never stands still."""
    tx.write_chains()
    comparison = exhausted(LogComparison(tx.connection, chain_id, doubted, base))
    mend(tx, comparison)
    return comparison


def mend_strays(tx: Transaction, damages: Sequence[Defect]) -> None:
    """Run the repairs of these damages; each must be right whatever has changed since."""
    tx.write_chains()
    if any(damage.kind == "chain" for damage in damages):
        tx.count_anew()
    retired: dict[bytes, None] = {}
    for damage in damages:
        for sql, values in damage.mends:
            tx.connection.execute(sql, values)
        if damage.mailbox_id is not None and damage.kind in _SHOWN and damage.can_be_mended:
            retired[damage.mailbox_id] = None
        tx.commit.mended |= set() if damage.user is None else {damage.user}
        if damage.mailbox_id is not None and damage.kind == "chain":
            tx.memory.chains.pop(damage.mailbox_id, None)
            tx.commit.recounted |= set() if damage.user is None else {damage.user}
    tx.commit.retired += retired


class OtherBody(NamedTuple):
    """A message as it is shown, and the body that it should have instead of its present one."""

    row: Row
    content_hash: bytes
    size_bytes: int

    def given_to(self, row: Row) -> Row:
        """Return the row with the right body, if it is of this message and has the wrong one."""
        if row.guid != self.row.guid or row.content_hash != self.row.content_hash:
            return row
        return row._replace(size_bytes=self.size_bytes, content_hash=self.content_hash)

    def named_by(self, add: MailAdd) -> MailAdd:
        """Return the change that added this message with the right body, if it has the wrong one."""
        if add.content_hash != self.row.content_hash:
            return add
        return add._replace(size_bytes=self.size_bytes, content_hash=self.content_hash)


def entries_with(connection: sqlite3.Connection, mailbox_id: bytes, others: Iterable[OtherBody]) -> list[Dot]:
    """Return the mailbox's entries that reference these messages' present bodies. Reads the whole log."""
    query = "SELECT origin, seq FROM log WHERE chain = ? AND instr(body, ?) > 0"
    hashes = {other.row.content_hash for other in others}
    found = (connection.execute(query, (mailbox_id, content_hash)) for content_hash in hashes)
    return sorted({Dot(*dot) for dots in found for dot in dots})


def put_right(tx: Transaction, key: MailboxKey, others: Sequence[OtherBody], dots: Iterable[Dot]) -> list[OtherBody]:
    """Replace the bodies of messages, in their rows and in these entries. Return the messages that still needed it.

    Their former bodies are kept as orphans, and this node's checkpoints of the mailbox are void.
    """
    done = [other for other in others if _give(tx, key, other)]
    if done:
        _correct_log(tx, key, {other.row.guid: other for other in done}, dots)
        for head in catalog.heads_of(tx.connection, key.mailbox_id):
            catalog.forget_unreadable(tx, head)
        orphaned_bodies.keep(tx.connection, {other.row.content_hash for other in done}, tx.wall_ms())
        tx.commit.retired.append(key.mailbox_id)
    return done


def _give(tx: Transaction, key: MailboxKey, other: OtherBody) -> bool:
    """Replace a message's body. Return False if the message is gone or has the right body already."""
    row = queries.row_of_guid(tx.connection, other.row.guid, key.mailbox_id)
    right = row and other.given_to(row)
    if row is None or right is None or right == row:
        return False
    tx.connection.execute(PUT_ROW, (key.mailbox_id, *columns_of(right)))
    note_lacking(tx.connection, [right])
    chain = tx.chain_to_change(key.mailbox_id, key.user, key.uidvalidity)
    chain.size_bytes += right.size_bytes - row.size_bytes
    chain.fingerprint = rows.add(rows.remove(chain.fingerprint, row.fingerprint()), right.fingerprint())
    return True


def _correct_log(tx: Transaction, key: MailboxKey, by_guid: Mapping[bytes, OtherBody], dots: Iterable[Dot]) -> None:
    """Give entries of the log the right bodies, and the head the history that its entry has then."""
    chain = tx.chain_to_change(key.mailbox_id, key.user, key.uidvalidity)
    for dot in dots:
        entry = queries.entry_at(tx.connection, dot)
        right = entry and replace(entry, changes=tuple(_righted(entry, by_guid)))
        if entry is None or right is None or right == entry:
            continue
        tx.correct(entry, right)
        if dot == chain.head:
            chain.history = right.history


def _righted(entry: Entry, by_guid: Mapping[bytes, OtherBody]) -> Iterable[Change]:
    for change in entry.changes:
        if isinstance(change, MailAdd):
            yield by_guid[change.guid].named_by(change) if change.guid in by_guid else change
        elif isinstance(change, Merge):
            named = (by_guid[row.guid].given_to(row) if row.guid in by_guid else row for row in change.rows)
            yield change._replace(rows=tuple(named))
        else:
            yield change


def _set_chain(tx: Transaction, right: Chain) -> None:
    """Write the right chain to disk and into the writer's memory, and apply the entries that waited for its head."""
    chains.save(tx.connection, right)
    tx.chain_to_change(right.id, right.user, right.uidvalidity)  # reread, in place of what this batch had changed
    apply_waiting(tx, right.id)
