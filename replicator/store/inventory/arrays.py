"""Conversion of batches of rows to Arrow columns.

Each column is converted as a whole, and its type is inferred from its values. So a value of a wrong type, which SQLite
may hold in a damaged file, shows without a check of each value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from replicator.store.db.rows.message_rows import DamagedRowError, placements_from
from replicator.store.inventory.flags import FlagReader
from replicator.store.inventory.screening import LENGTHS
from replicator.store.inventory.tables import Values
from resync.inventory import FORMAT, FORMAT_KEY, TABLES, Column, Type

Array: TypeAlias = "pa.Array[Any]"

_FLAG = pa.struct(
    [
        pa.field("flag", pa.string(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
        pa.field("sid", pa.string(), nullable=False),
        pa.field("set", pa.bool_(), nullable=False),
    ]
)
_PLACEMENT = pa.struct(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("change", pa.int32(), nullable=False),
    ]
)
TYPES: Mapping[Type, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "context": pa.map_(pa.string(), pa.int64()),
    "flags": pa.list_(pa.field("element", _FLAG, nullable=False)),
    "placements": pa.list_(pa.field("element", _PLACEMENT, nullable=False)),
}
SAME = {"claim_origin": "origin", "claim_seq": "seq"}
"""Columns in which NULL stands for the value in another one (`tables.SOURCES`)."""


class WrongValueError(Exception):
    """A value that its column cannot have."""


def schema_of(table: str) -> pa.Schema:
    """Return the table's schema, with the format's version in the metadata."""
    fields = [pa.field(column.name, TYPES[column.type], nullable=column.nullable) for column in TABLES[table]]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT)})


class Converter:
    """The converter of one table's rows to record batches."""

    def __init__(self, table: str) -> None:
        self.schema = schema_of(table)
        self._columns = TABLES[table]
        self._flags = FlagReader()

    def batch(self, rows: Sequence[Values]) -> pa.RecordBatch:
        """Convert rows to a record batch. Raises WrongValueError."""
        try:
            arrays: dict[str, Array] = {}
            for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
                arrays[column.name] = self._array(column, values)
            for name, other in SAME.items():
                if name in arrays:
                    arrays[name] = pc.coalesce(arrays[name], arrays[other])
            return pa.RecordBatch.from_arrays(list(arrays.values()), schema=self.schema)
        except (pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            raise WrongValueError from error

    def _array(self, column: Column, values: Values) -> Array:
        match column.type:
            case "flags":
                return self._flags_array(cast("Sequence[bytes]", values))
            case "placements":
                return pa.array([_placements(value) for value in values], TYPES["placements"])
            case "context":
                contexts = cast("Sequence[Mapping[str, int]]", values)
                return pa.array([sorted(context.items()) for context in contexts], TYPES["context"])
            case "binary":
                return _binary(column, values)
            case "bool":
                if not set(values) <= {0, 1}:
                    raise WrongValueError
                return pa.array([value == 1 for value in values], pa.bool_())
            case _:
                return _exact(column, pa.array(values))

    def _flags_array(self, blobs: Sequence[bytes]) -> Array:
        ends, kinds, times = self._flags.read(blobs)
        numbers = pa.array(kinds, pa.int32())
        flags, sids, are_set = zip(*self._flags.table, strict=True) if self._flags.table else ((), (), ())
        states = pa.StructArray.from_arrays(
            [
                pa.array(flags, pa.string()).take(numbers),
                pa.array(times, pa.int64()),
                pa.array(sids, pa.string()).take(numbers),
                pa.array(are_set, pa.bool_()).take(numbers),
            ],
            fields=list(_FLAG),
        )
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), states, type=TYPES["flags"])


def _placements(packed: object) -> list[tuple[str, int, int]]:
    """Unpack other placements of a message, of which most messages have none. Raises WrongValueError."""
    if packed is None:
        return []
    try:
        return [(*dot, change) for dot, change in placements_from(packed)]
    except DamagedRowError as error:
        raise WrongValueError from error


def _binary(column: Column, values: Values) -> Array:
    if (
        set(map(type, values)) - {type(None) if column.nullable else bytes} - {bytes}
    ):  # Arrow would turn texts among them into bytes
        raise WrongValueError
    return pa.array(values, pa.binary(LENGTHS.get(column.name, -1))).cast(pa.binary())


def _exact(column: Column, array: Array) -> Array:
    """Cast a column to its type. Raises WrongValueError for wrong values; a column of NULLs only may be of any type."""
    if array.null_count and not (column.nullable or column.name in SAME):
        raise WrongValueError
    expected = pa.string() if column.type == "string" else pa.int64()
    if array.type != expected and array.null_count < len(array):
        raise WrongValueError
    return array.cast(TYPES[column.type])
