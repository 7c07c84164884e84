"""The tables of inventories as Spark types, from `resync.inventory.TABLES`."""

from __future__ import annotations

from collections.abc import Mapping
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

from resync.inventory import TABLES, Type

NODE: Final = "node"
"""The column that names the node of a row."""

FLAG: Final = StructType(
    [
        StructField("flag", StringType(), nullable=False),
        StructField("time", LongType(), nullable=False),
        StructField("sid", StringType(), nullable=False),
        StructField("set", BooleanType(), nullable=False),
    ]
)
PLACEMENT: Final = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("change", IntegerType(), nullable=False),
    ]
)
CONTEXT: Final = MapType(StringType(), LongType(), valueContainsNull=False)

_TYPES: Final[Mapping[Type, DataType]] = {
    "int32": IntegerType(),
    "int64": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "bool": BooleanType(),
    "context": CONTEXT,
    "flags": ArrayType(FLAG, containsNull=False),
    "placements": ArrayType(PLACEMENT, containsNull=False),
}

SCHEMAS: Final[Mapping[str, StructType]] = {
    table: StructType([StructField(name, _TYPES[kind], nullable) for name, kind, nullable in columns])
    for table, columns in TABLES.items()
}
"""Table -> its schema."""
