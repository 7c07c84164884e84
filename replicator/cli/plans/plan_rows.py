"""Rows of a repair plan's files. No other module of the command line needs pyarrow, which may be missing.

A file is read by row groups, and these by slices, so memory does not grow with the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from protocol.values import Dot
from replicator.cli.target import CommandError
from replicator.http.tasks.planned import check_planned
from replicator.tasks import PlannedMailbox, Undone
from resync.entry import ID_BYTES
from resync.plan import TABLES, Type

READ = ("mailbox", "user", "uidvalidity", "relation", "heads")
SLICE_ROWS = 10_000
RELATIONS: Final = frozenset({"behind", "forked", "damaged"})
NO_HEAD = "it has no head in any inventory: run `replicator check --repair` at the nodes, and make a new plan"

_TREE = pa.array([0], pa.int64())
_Row: TypeAlias = Mapping[str, Any]  # as pyarrow returns it
_TYPES: Final = {column.name: column.type for column in TABLES["mailboxes"]}
_HEAD_FIELDS: Final[Mapping[str, Type]] = {"node": "string", "origin": "string", "seq": "int64"}


class PlanFile:
    """A file of `mailboxes`, called `name` in errors. `nodes`: the plan's. Everything here raises CommandError."""

    def __init__(self, file: BinaryIO, name: str, nodes: Collection[str]) -> None:
        self._name, self._nodes = name, frozenset(nodes)
        try:
            self._parquet = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        schema = self._parquet.schema_arrow
        for column in READ:
            if column not in schema.names:
                raise CommandError(f"{name} has no column {column!r}; docs/spark.md lists those of a plan")
            if not _fits(found := schema.field(column).type, _TYPES[column]):
                raise CommandError(f"{name}: column {column!r} is of type {found}, not {_TYPES[column]}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._parquet.metadata.num_rows

    def planned(self, *, trees: bool) -> Iterator[PlannedMailbox | Undone]:
        """Yield the folder trees, or else the mailboxes; an Undone is a row that no node can carry out."""
        try:
            for batch in self._parquet.iter_batches(SLICE_ROWS, columns=list(READ)):
                is_tree = pc.is_in(batch.column("uidvalidity"), value_set=_TREE)  # false where that is null
                for row in batch.filter(is_tree if trees else pc.invert(is_tree)).to_pylist():
                    yield self._planned(row)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def _planned(self, row: _Row) -> PlannedMailbox | Undone:
        mailbox = row["mailbox"]
        if mailbox is None or len(mailbox) != ID_BYTES:
            raise CommandError(f"{self._name}: a mailbox's id must have {ID_BYTES} bytes, unlike {mailbox!r}")
        if row["user"] is None:
            return Undone(None, mailbox.hex(), mailbox.hex(), "damaged", NO_HEAD)
        try:
            planned = PlannedMailbox(row["user"], mailbox.hex(), *self._what(row))
        except ValueError as error:
            raise CommandError(f"{self._name}: mailbox {mailbox.hex()}: {error}") from None
        try:
            check_planned(planned)
        except ValueError as error:
            user = planned.user if planned.user.isprintable() else ascii(planned.user)
            return Undone(user, planned.mailbox, planned.mailbox, "failed", f"the plan's row is invalid: {error}")
        return planned

    def _what(self, row: _Row) -> tuple[int, Mapping[str, Dot | None], bool]:
        """Return UIDVALIDITY, heads, and True if the mailbox is damaged. Raises ValueError."""
        if row["uidvalidity"] is None:
            raise ValueError("it has a user but no uidvalidity")
        if row["relation"] not in RELATIONS:
            raise ValueError(f"its relation is {row['relation']!r}, not one of {', '.join(sorted(RELATIONS))}")
        heads = [_head(head) for head in row["heads"] or ()]
        if len(heads) != len(self._nodes) or {node for node, _ in heads} != self._nodes:
            raise ValueError(f"heads must name each node of the plan once: {', '.join(sorted(self._nodes))}")
        return row["uidvalidity"], dict(heads), row["relation"] == "damaged"

    def _unreadable(self, error: Exception) -> CommandError:
        return CommandError(f"{self._name} cannot be read as Parquet: {error}")


def _head(head: _Row | None) -> tuple[str, Dot | None]:
    """Convert one head. Raises ValueError."""
    if head is None or head["node"] is None or (head["origin"] is None) != (head["seq"] is None):
        raise ValueError(f"{head!r} is not a head: a head has a node, and both origin and seq or neither")
    return head["node"], None if head["origin"] is None else Dot(head["origin"], head["seq"])


def _fits(found: pa.DataType, wanted: Type) -> bool:
    match wanted:
        case "int64":
            return pa.types.is_int64(found)
        case "string":
            return pa.types.is_string(found) or pa.types.is_large_string(found)
        case "binary":
            return pa.types.is_binary(found) or pa.types.is_large_binary(found)
        case "heads":
            if not (isinstance(found, pa.ListType) and isinstance(head := found.value_type, pa.StructType)):
                return False
            fields = {head.field(at).name: head.field(at).type for at in range(head.num_fields)}
            return all(name in fields and _fits(fields[name], kind) for name, kind in _HEAD_FIELDS.items())
    raise AssertionError(f"no column of type {wanted} is read")
