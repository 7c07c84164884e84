"""The tables of inventories, and the DataFrame that each stage of an audit yields, as Spark types.

Spark itself takes more columns for nullable than are ever null. Here a column is nullable if null has a meaning, which
the stage's docstring gives; `tests/spark/test_schemas.py` holds the stages to all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from resync import inventory, plan

NODE: Final = "node"
"""The column that names the node of a row."""

_BINARY, _BOOL, _INT, _LONG, _STRING = BinaryType(), BooleanType(), IntegerType(), LongType(), StringType()


def _struct(fields: Mapping[str, DataType], *, nullable: Collection[str] = ()) -> StructType:
    return StructType([StructField(name, kind, name in nullable) for name, kind in fields.items()])


def _list(kind: DataType) -> ArrayType:
    return ArrayType(kind, containsNull=False)


FLAG: Final = _struct({"flag": _STRING, "time": _LONG, "sid": _STRING, "set": _BOOL})
PLACEMENT: Final = _struct({"origin": _STRING, "seq": _LONG, "change": _INT})
CONTEXT: Final = MapType(_STRING, _LONG, valueContainsNull=False)

_TYPES: Final[Mapping[inventory.Type | plan.Type, DataType]] = {
    "int32": _INT,
    "int64": _LONG,
    "string": _STRING,
    "binary": _BINARY,
    "bool": _BOOL,
    "context": CONTEXT,
    "flags": _list(FLAG),
    "placements": _list(PLACEMENT),
    "nodes": _list(_STRING),
    "heads": _list(_struct({NODE: _STRING, "origin": _STRING, "seq": _LONG}, nullable=("origin", "seq"))),
}

SCHEMAS: Final[Mapping[str, StructType]] = {
    table: StructType([StructField(name, _TYPES[kind], nullable) for name, kind, nullable in columns])
    for table, columns in inventory.TABLES.items()
}
"""Table of an inventory -> its schema, from `resync.inventory.TABLES`."""

TOTAL: Final = _struct({"sum_a": _LONG, "sum_b": _LONG, "sum_c": _LONG, "sum_d": _LONG})
"""Sums of hashes over rows."""

_SUMS = _struct(
    {NODE: _STRING, "has_head": _BOOL, "said": _LONG, "head_a": _LONG, "head_b": _LONG, "rows": _LONG, "total": TOTAL},
    nullable=("head_a", "head_b"),
)
_STATE = _struct(
    {
        "is_there": _BOOL,
        "leads": _BOOL,
        "context": CONTEXT,
        "rows": _LONG,
        "total": TOTAL,
        NODE: _STRING,
        "place": _INT,
        "user": _STRING,
        "uidvalidity": _LONG,
        "head_origin": _STRING,
        "head_seq": _LONG,
        "digest": _BINARY,
        "risen": _LONG,
        "uidnext": _LONG,
        "highestmodseq": _LONG,
        "covers": _LONG,
    },
    nullable=("user", "uidvalidity", "head_origin", "head_seq", "digest"),
)
VERSION: Final = _struct(
    {
        "uid": _LONG,
        "claim_origin": _STRING,
        "claim_seq": _LONG,
        "modseq": _LONG,
        "flags": _list(FLAG),
        "received_ms": _LONG,
        "size_bytes": _LONG,
        "content_hash": _BINARY,
        "placements": _list(_struct({"seq": _LONG, "origin": _STRING, "change": _INT, "seen": _LONG})),
        "claim_seen": _LONG,
        "saved_ms": _LONG,
    },
    nullable=("saved_ms",),
)
"""A message as one node shows it, or as merged, see `comparison.versions.STATE`."""

_GATHERED: Final[Mapping[str, DataType]] = {
    "mailbox": _BINARY,
    "guid": _BINARY,
    "versions": _list(_struct({"place": _INT, "row": VERSION})),
    "plan": _struct({"places": _list(_INT), "uidnexts": _list(_LONG), "modseqs": _list(_LONG)}),
}

STAGES: Final[Mapping[str, StructType]] = {
    "sums.compared": _struct({"mailbox": _BINARY, "is_tree": _BOOL, "sums": _list(_SUMS), "is_equal": _BOOL}),
    "mailboxes.classified": _struct(
        {
            "mailbox": _BINARY,
            "is_tree": _BOOL,
            "user": _STRING,
            "relation": _STRING,
            "uidvalidity_differs": _BOOL,
            "missing_on": _list(_STRING),
            "states": _list(_STATE),
            "branches": _list(_INT),
        },
        nullable=("user", "states", "branches"),
    ),
    "versions.gathered": _struct(_GATHERED),
    "merging.folded": _struct(
        {**_GATHERED, **{field.name: field.dataType for field in VERSION}, "given": _LONG},
        nullable=(*VERSION.names, "given"),
    ),
    "merging.rows": _struct(
        {
            "mailbox": _BINARY,
            "guid": _BINARY,
            "uid": _LONG,
            "origin": _STRING,
            "seq": _LONG,
            "change": _INT,
            "claim_origin": _STRING,
            "claim_seq": _LONG,
            "modseq": _LONG,
            "flags": _list(FLAG),
            "received_ms": _LONG,
            "size_bytes": _LONG,
            "content_hash": _BINARY,
            "also": _list(_struct({"seq": _LONG, "origin": _STRING, "change": _INT})),
            "saved_ms": _LONG,
        },
        nullable=("saved_ms",),
    ),
    "merging.heads": _struct(
        {"mailbox": _BINARY, "uidnext": _LONG, "highestmodseq": _LONG, "risen": _LONG, "context": CONTEXT}
    ),
    "messages.kinds": _struct(
        {
            "mailbox": _BINARY,
            "guid": _BINARY,
            "missing_on": _list(_STRING),
            "expunged_on": _list(_STRING),
            "uid_conflict": _BOOL,
            "flags_differ": _BOOL,
            "damage": _BOOL,
            "uid": _LONG,
            "modseq": _LONG,
            "flags": _list(FLAG),
            "content_hash": _BINARY,
            "given": _LONG,
            "only_modseq": _BOOL,
        },
        nullable=("uid", "modseq", "flags", "content_hash", "given"),
    ),
    "projections.damaged": _struct(
        {NODE: _STRING, "mailbox": _BINARY, "guid": _BINARY, "what": _STRING, "uid": _LONG}, nullable=("uid",)
    ),
    "projections.counted": _struct({NODE: _STRING, "what": _STRING, "count": _LONG}),
    "projections.miscounted": _struct({NODE: _STRING, "count": _LONG}),
}
"""Stage of the comparison, by module and function -> the schema of what it yields."""

PLAN: Final[Mapping[str, StructType]] = {
    table: StructType(
        [
            *(StructField(name, _TYPES[kind], nullable) for name, kind, nullable in columns),
            StructField(plan.PARTITIONS[table], _STRING, nullable=False),
        ]
    )
    for table, columns in plan.TABLES.items()
}
"""Table of a plan -> its schema before it is written, from `resync.plan.TABLES`, with the column of its partitions."""
