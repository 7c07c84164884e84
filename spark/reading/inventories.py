"""Read inventories: check each as a whole before trusting any row, then unite each table of all nodes in one DataFrame.

The checks cover the manifests, and the Parquet footers: the columns of each file, and its number of rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from resync.inventory import MANIFEST, MANIFEST_BYTES_MAX, InventoryManifest, manifest_from
from spark.reading.footers import footers
from spark.schemas import NODE, SCHEMAS

_ERRORS = (PySparkException, Py4JJavaError)  # the latter: errors for which pyspark has no class of its own

_UNREADABLE = "cannot be read as Parquet; copy the inventory again, or write a new one"
_OPTIONAL = re.compile(r"^  optional (?:group )?(?:\w+ )?(\w+)", re.MULTILINE)
"""Matches columns that may be null in Parquet's text of a schema."""

NODES_MAX = 60
"""Inventories of one comparison: one bit of a number says whether a node has seen an entry."""


class InventoryError(Exception):
    """An unusable inventory: its place, the fault, and the remedy."""


@dataclass(frozen=True, slots=True)
class Inventories:
    """Tables of several nodes, each with the column NODE. `nodes`: their SIDs, sorted."""

    nodes: tuple[str, ...]
    manifests: Mapping[str, InventoryManifest]
    tables: Mapping[str, DataFrame]


def place_of(argument: str) -> tuple[str, str]:
    """Return the SID and place of `dc1=/var/inventories/dc1` or `dc1=s3a://bucket/dc1`. Raises InventoryError."""
    sid, equals, place = argument.partition("=")
    if not (sid and equals and place):
        raise InventoryError(
            f"{argument!r} does not name an inventory; write it like dc1=/srv/inventories/dc1 (NODE=PLACE)"
        )
    return sid, place.rstrip("/")


def read(spark: SparkSession, places: Mapping[str, str]) -> Inventories:
    """Read the inventories at these places, by SIDs.

    Raises InventoryError unless all are complete and of one cluster.
    """
    if not 1 <= len(places) <= NODES_MAX:
        raise InventoryError(f"{len(places)} inventories are given; give 1 to {NODES_MAX}")
    manifests = {sid: _manifest(spark, sid, place) for sid, place in sorted(places.items())}
    clusters = {manifest.cluster: sid for sid, manifest in manifests.items()}
    if len(clusters) > 1:
        which = ", ".join(f"{sid} of {name!r}" for name, sid in clusters.items())
        raise InventoryError(f"the inventories belong to several clusters: {which}; compare inventories of one cluster")
    parts = {
        (table, sid): _part(spark, f"{place}/{table}", table, sid)
        for table in SCHEMAS
        for sid, place in sorted(places.items())
    }
    _check_files(spark, parts, places, manifests)
    tables = {table: reduce(DataFrame.unionByName, (parts[table, sid] for sid in manifests)) for table in SCHEMAS}
    return Inventories(tuple(manifests), manifests, tables)


def _manifest(spark: SparkSession, sid: str, place: str) -> InventoryManifest:
    path = f"{place}/{MANIFEST}"
    document = F.when(F.col("length") <= MANIFEST_BYTES_MAX, F.col("content")).alias("document")
    try:
        found = _reader(spark).format("binaryFile").load(path).select(document).first()
    except _ERRORS as error:
        what = f"{path} cannot be read, so the inventory is missing or incomplete; write it again with"
        raise InventoryError(f"{what} `replicator inventory`: {_first_line(error)}") from error
    if found is None or found["document"] is None:
        raise InventoryError(f"{path} is larger than {MANIFEST_BYTES_MAX} bytes, so it is not a manifest")
    try:
        manifest = manifest_from(bytes(found["document"]))
    except ValueError as error:
        raise InventoryError(f"{path}: {error}") from error
    if manifest.node != sid:
        raise InventoryError(f"{path} is of node {manifest.node!r}, but was given for {sid}")
    return manifest


def _reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader that never skips unreadable files, even where the cluster is configured to do so.

    The rows of skipped files would be taken for missing ones.
    """
    return spark.read.options(ignoreCorruptFiles=False, ignoreMissingFiles=False)


def _part(spark: SparkSession, folder: str, table: str, sid: str) -> DataFrame:
    """Return one table of one node."""
    try:
        return _reader(spark).schema(SCHEMAS[table]).parquet(folder).withColumn(NODE, F.lit(sid))
    except _ERRORS as error:
        raise InventoryError(f"{folder} {_UNREADABLE}: {_first_line(error)}") from error


def _check_files(
    spark: SparkSession,
    parts: Mapping[tuple[str, str], DataFrame],
    places: Mapping[str, str],
    manifests: Mapping[str, InventoryManifest],
) -> None:
    """Check that the files have all columns and all rows. A missing column would be read as null.

    Raises InventoryError.
    """
    checked: set[tuple[str, str]] = set()
    for (table, sid), part in parts.items():
        folder = f"{places[sid]}/{table}"
        try:
            found = footers(spark, part.inputFiles())
            for one in found:
                if (table, one.schema) not in checked:
                    file = unquote(one.file)
                    _check_columns(file, spark.read.parquet(file).schema, SCHEMAS[table])
                    _check_nulls(file, one.schema, SCHEMAS[table])
                    checked.add((table, one.schema))
        except _ERRORS as error:
            raise InventoryError(f"{folder} {_UNREADABLE}: {_first_line(error)}") from error
        count, said = sum(one.rows for one in found), manifests[sid].rows[table]
        if count != said:
            wrong = f"{folder} has {count} rows, but {MANIFEST} says {said}"
            raise InventoryError(f"{wrong}; files are missing or surplus: copy the inventory again")


def _check_columns(file: str, found: StructType, wanted: StructType) -> None:
    """Check the columns; additional ones do no harm. Raises InventoryError."""
    present = {field.name: field.dataType for field in found}
    for field in wanted:
        if field.name not in present:
            raise InventoryError(
                f"{file} has no column {field.name!r}; it is not a table of this format of inventories"
            )
        if _bare(present[field.name]) != _bare(field.dataType):
            is_, should = present[field.name].simpleString(), field.dataType.simpleString()
            raise InventoryError(f"{file}: column {field.name!r} is {is_}, but must be {should}")


def _check_nulls(file: str, schema: str, wanted: StructType) -> None:
    """Check that no column may wrongly be null: such nulls would be taken for values somewhere.

    Raises InventoryError.
    """
    optional = set(_OPTIONAL.findall(schema))
    for field in wanted:
        if not field.nullable and field.name in optional:
            raise InventoryError(
                f"{file}: column {field.name!r} may be null; it is not a table of this format of inventories"
            )


def _bare(kind: DataType) -> object:
    """Return the type without its nullability, which Parquet readers drop."""
    if isinstance(kind, ArrayType):
        return "array", _bare(kind.elementType)
    if isinstance(kind, MapType):
        return "map", _bare(kind.keyType), _bare(kind.valueType)
    if isinstance(kind, StructType):
        return "struct", tuple((field.name, _bare(field.dataType)) for field in kind)
    return kind.simpleString()


def _first_line(error: Exception) -> str:
    """Return the first line of an error, or the last cause if the virtual machine reports several."""
    text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    lines = [*text.splitlines(), type(error).__name__]
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by: ")]
    return (causes or lines)[-1 if causes else 0].removeprefix("Caused by: ")[:300]


def places_of(arguments: Iterable[str]) -> dict[str, str]:
    """Return places by SIDs, from arguments as for `place_of`. Raises InventoryError if a SID is named twice."""
    found: dict[str, str] = {}
    for sid, place in map(place_of, arguments):
        if sid in found:
            raise InventoryError(f"{sid} is given twice: {found[sid]} and {place}")
        found[sid] = place
    return found
