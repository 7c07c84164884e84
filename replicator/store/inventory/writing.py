"""The inventory of a database, within one read transaction, to a target.

What is damaged is told and left out. What SQLite cannot read at all ends it: nobody could say how much is missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import pyarrow as pa

from replicator.environment import wall_clock_ms
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.message_rows import DamagedRowError
from replicator.store.inventory.arrays import SAME, Converter, WrongValueError
from replicator.store.inventory.conversation import (
    Begun,
    Done,
    Event,
    LeftOut,
    MailboxName,
    Order,
    Read,
    Unreadable,
)
from replicator.store.inventory.parquet import table_writer
from replicator.store.inventory.screening import key_of, wrong_columns
from replicator.store.inventory.tables import SOURCES, Values, batches, count
from replicator.store.inventory.targets import Target, whole_or_nothing
from resync.inventory import MANIFEST, TABLES, Manifest

Tell = Callable[[Event], None]
FindMasters = Callable[[Sequence[MailboxName]], Sequence[str | None]]

TOLD_MAX = 10_000  # rows that are named where they are left out

_IN_ORDER = ("heads", "folders", "subscriptions", "messages", "guids")
"""Heads first: their masters are those of now."""
_OF_CHAIN = attrgetter("id", "user", "uidvalidity", "risen", "uidnext", "highestmodseq")


@dataclass(slots=True)
class Inventory:
    """One at work. `tell` is called as it goes on, `find_masters` with names of mailboxes and trees."""

    connection: sqlite3.Connection
    target: Target
    tell: Tell
    find_masters: FindMasters
    unreadable: dict[str, int] = field(default_factory=dict)
    _unnamed: int = 0  # of the batch: rows that are left out beyond TOLD_MAX

    def write(self, order: Order) -> None:
        """Write it, or nothing. Raises sqlite3.Error, OSError, ObjectStoreError, TargetError."""
        with whole_or_nothing(self.target):
            self._write(order)

    def _write(self, order: Order) -> None:
        self.connection.execute("BEGIN")
        try:
            context, taken_ms = queries.log_context(self.connection), wall_clock_ms()
            self.tell(Begun(count(self.connection)))
            rows = {table: self._table(table) for table in _IN_ORDER}
        finally:
            if self.connection.in_transaction:  # an error of the disk has ended it
                self.connection.execute("COMMIT")
        manifest = Manifest(order.cluster, order.node, order.origin, taken_ms, context, rows, self.unreadable)
        with self.target.writing(MANIFEST) as file:
            file.write(manifest.to_json())
        self.tell(Done(self.target.files, self.target.size_bytes, taken_ms))

    def _table(self, table: str) -> int:
        converter = Converter(table)
        with table_writer(table, converter.schema, self.target) as writer:
            for rows in batches(self.connection, SOURCES[table]):
                batch = self._batch(converter, table, self._heads(rows) if table == "heads" else rows)
                if batch is not None:
                    writer.write(batch)
                if self._unnamed:
                    self.tell(LeftOut(table, self._unnamed))
                    self._unnamed = 0
                self.tell(Read(table, len(rows)))
        return writer.rows

    def _batch(self, converter: Converter, table: str, rows: Sequence[Values]) -> pa.RecordBatch | None:
        """Of those that make sense."""
        try:
            return converter.batch(rows) if rows else None
        except WrongValueError:
            return self._screened(converter, table, rows)

    def _screened(self, converter: Converter, table: str, rows: Sequence[Values]) -> pa.RecordBatch | None:
        whole: list[Values] = []
        for row in rows:
            if wrong := wrong_columns(TABLES[table], row, SAME.keys()):
                self._leave_out(table, key_of(table, row), f"makes no sense in {', '.join(wrong)}")
            else:
                whole.append(row)
        return converter.batch(whole) if whole else None

    def _leave_out(self, table: str, key: str, what: str) -> None:
        if sum(self.unreadable.values()) < TOLD_MAX:
            self.tell(Unreadable(table, key, what))
        else:
            self._unnamed += 1  # a line each would keep the node's event loop busy
        self.unreadable[table] = self.unreadable.get(table, 0) + 1

    def _heads(self, rows: Sequence[Values]) -> list[Values]:
        """The rows of the inventory's table, of those of the database's."""
        heads: list[tuple[Chain, bytes]] = []
        for row in rows:
            try:
                head = chains.from_row(row)
                heads.append((head, head.digest()))
            except (DamagedRowError, ValueError, TypeError):
                self._leave_out("heads", key_of("heads", row), "makes no sense")
        masters = self.find_masters([(head.user, head.id, head.uidvalidity) for head, _ in heads]) if heads else []
        return [_head_values(*head, master) for head, master in zip(heads, masters, strict=True)]


def _head_values(head: Chain, digest: bytes, master: str | None) -> Values:
    return *_OF_CHAIN(head), *(head.head or (None, None)), head.context, head.messages, digest, master
