"""The inventory of a database, written to a target within one read transaction.

Damaged rows are reported and left out. Data that SQLite cannot read at all ends the inventory, since the extent of the
loss would be unknown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import pyarrow as pa

from replicator.runtime.environment import wall_clock_ms
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.rows.message_rows import DamagedRowError
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
from resync.inventory import MANIFEST, TABLES, InventoryManifest

Tell = Callable[[Event], None]
FindMasters = Callable[[Sequence[MailboxName]], Sequence[str | None]]

TOLD_MAX = 10_000  # rows left out that are reported one by one

_IN_ORDER = ("heads", "folders", "subscriptions", "annotations", "messages", "guids")
"""The order of the tables. Heads come first, because their masters are those at the time of the question."""
_OF_CHAIN = attrgetter("id", "user", "uidvalidity", "risen", "uidnext", "highestmodseq")


@dataclass(slots=True)
class InventoryWriter:
    """An inventory in progress. It calls `tell` with events, and `find_masters` with names of mailboxes and trees."""

    connection: sqlite3.Connection
    target: Target
    tell: Tell
    find_masters: FindMasters
    unreadable: dict[str, int] = field(default_factory=dict)
    _unnamed: int = 0  # rows of the batch left out beyond TOLD_MAX

    def write(self, order: Order) -> None:
        """Write the inventory completely or not at all.

        Raises sqlite3.Error, OSError, ObjectStoreError, TargetError.
        """
        with whole_or_nothing(self.target):
            self._write(order)

    def _write(self, order: Order) -> None:
        self.connection.execute("BEGIN")
        try:
            context, taken_ms = queries.log_context(self.connection), wall_clock_ms()
            self.tell(Begun(count(self.connection)))
            rows = {table: self._table(table) for table in _IN_ORDER}
        finally:
            if self.connection.in_transaction:  # a disk error may have ended it
                self.connection.execute("COMMIT")
        manifest = InventoryManifest(order.cluster, order.node, order.origin, taken_ms, context, rows, self.unreadable)
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
        """Convert the rows that make sense."""
        try:
            return converter.batch(rows) if rows else None
        except WrongValueError:
            return self._screened(converter, table, rows)

    def _screened(self, converter: Converter, table: str, rows: Sequence[Values]) -> pa.RecordBatch | None:
        whole: list[Values] = []
        for row in rows:
            if wrong := wrong_columns(TABLES[table], row, SAME.keys()):
                self._leave_out(table, key_of(table, row), f"has invalid values in {', '.join(wrong)}")
            else:
                whole.append(row)
        return converter.batch(whole) if whole else None

    def _leave_out(self, table: str, key: str, what: str) -> None:
        if sum(self.unreadable.values()) < TOLD_MAX:
            self.tell(Unreadable(table, key, what))
        else:
            self._unnamed += 1  # one line per row would keep the node's event loop busy
        self.unreadable[table] = self.unreadable.get(table, 0) + 1

    def _heads(self, rows: Sequence[Values]) -> list[Values]:
        """Convert the database's rows of heads to rows of the inventory's table."""
        heads: list[tuple[Chain, bytes]] = []
        for row in rows:
            try:
                head = chains.from_row(row)
                heads.append((head, head.digest()))
            except (DamagedRowError, ValueError, TypeError):
                self._leave_out("heads", key_of("heads", row), "has invalid values")
        masters = self.find_masters([(head.user, head.id, head.uidvalidity) for head, _ in heads]) if heads else []
        return [_head_values(*head, master) for head, master in zip(heads, masters, strict=True)]


def _head_values(head: Chain, digest: bytes, master: str | None) -> Values:
    return *_OF_CHAIN(head), *(head.head or (None, None)), head.context, head.messages, digest, master
