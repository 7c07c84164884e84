"""Writer of a table's rows as Parquet files, one after the other, a row group at a time.

A row group is encoded, compressed and written in a thread, where pyarrow needs no Python, while the next one is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.store.inventory.targets import Target
from resync.inventory import COMPRESSION, FILE_ROWS, GROUP_ROWS, part_name

_REPEATING = {"mailbox", "user", "origin", "claim_origin", "sid", "master", "head_origin", "change"}
"""Columns of few values, or of long runs of one value; a dictionary is of no use for others."""

GROUP_BYTES = 64 << 20
"""Approximate limit of a row group in memory: with very many origins or flags it has fewer rows than GROUP_ROWS."""


@contextmanager
def table_writer(table: str, schema: pa.Schema, target: Target) -> Iterator[TableWriter]:
    """Open the writer of one table. After the block all files are complete, or it raises the error of one.

    Raises TargetError, OSError, ObjectStoreError.
    """
    with ExitStack() as file, ThreadPoolExecutor(1) as thread:
        writer = TableWriter(table, schema, target, file, thread)
        yield writer
        writer.finish()


class TableWriter:
    """The writer of a table's files, one after the other, each in the context of `file`."""

    def __init__(
        self, table: str, schema: pa.Schema, target: Target, file: ExitStack, thread: ThreadPoolExecutor
    ) -> None:
        self.rows = 0
        self._table, self._schema, self._target = table, schema, target
        self._file, self._thread = file, thread
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = self._groups = self._files = 0  # of this group, this file, and all
        self._writer: pq.ParquetWriter | None = None
        self._writing: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows. Raises TargetError, OSError, ObjectStoreError, also for earlier rows."""
        while batch.num_rows:
            part = batch.slice(0, GROUP_ROWS - self._group_rows)
            self._group.append(part)
            self._group_rows += part.num_rows
            self._group_bytes += part.nbytes
            batch = batch.slice(part.num_rows)
            if self._group_rows == GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
                self._flush()

    def finish(self) -> None:
        """Finish the table. A table without rows has a file too."""
        if self._group_rows or not self._files:
            self._flush()
        self._end()

    def _flush(self) -> None:
        """Start writing the row group."""
        self._await()
        if self._writer is None or self._groups >= FILE_ROWS // GROUP_ROWS:
            self._end()
            self._writer = self._begin()
        self._target.check_room()
        group = pa.Table.from_batches(self._group, self._schema)
        self._writing = self._thread.submit(self._writer.write_table, group, GROUP_ROWS)
        self._groups += 1
        self.rows += self._group_rows
        self._group, self._group_rows, self._group_bytes = [], 0, 0

    def _await(self) -> None:
        if (writing := self._writing) is not None:
            self._writing = None
            writing.result()

    def _begin(self) -> pq.ParquetWriter:
        file = self._file.enter_context(self._target.writing(part_name(self._table, self._files)))
        self._files += 1
        self._groups = 0
        repeating = [name for name in self._schema.names if name in _REPEATING]
        writer = pq.ParquetWriter(
            file,
            self._schema,
            compression=COMPRESSION,
            use_dictionary=repeating,  # type: ignore[arg-type]  # its documentation allows names
            write_page_checksum=True,  # it is copied between machines
        )
        return self._file.enter_context(writer)

    def _end(self) -> None:
        """Complete the current file, and give it its name."""
        self._await()
        self._writer = None
        self._file.close()
