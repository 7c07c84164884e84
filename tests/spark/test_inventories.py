"""Reading of inventories, which must be complete, of one cluster, and have the columns of their format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from benchmarks.spark.generator import Recipe, generate
from resync.inventory import FORMAT, MANIFEST, part_name
from spark.job.session import _explained
from spark.reading import inventories
from spark.reading.inventories import InventoryError
from spark.schemas import SCHEMAS
from tests.spark.settings import settings
from tests.spark.writing import Record, write

FOLDER: Record = {
    "mailbox": b"m" * 16, "user": "alice", "name": "INBOX", "uidvalidity": 7, "deleted": False, "time": 1, "sid": "dc9",
}  # fmt: skip


def inventory(path: Path, node: str = "dc1", cluster: str = "test") -> str:
    write(path / node, node, {"folders": [FOLDER]}, cluster)
    return str(path / node)


def change_manifest(place: str, **members: object) -> None:
    """Change members of an inventory's manifest."""
    path = Path(place, MANIFEST)
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def add_part(place: str, table: str, columns: Mapping[str, Sequence[str | int | bool]]) -> None:
    """Add a second file of a table to an inventory."""
    made = pa.table(dict(columns))
    required = pa.schema([field.with_nullable(nullable=False) for field in made.schema])
    pq.write_table(made.cast(required), Path(place, part_name(table, 1)))


def read_error(spark: SparkSession, **places: str) -> str:
    with pytest.raises(InventoryError) as error:
        inventories.read(spark, places)
    return str(error.value)


@pytest.mark.long
def test_tables_add_the_node_to_each_row(spark: SparkSession, tmp_path: Path) -> None:
    places = {node: inventory(tmp_path, node) for node in ("dc2", "dc1")}
    read = inventories.read(spark, places)
    assert read.nodes == ("dc1", "dc2")
    assert read.manifests["dc2"].node == "dc2"
    rows = read.tables["folders"].orderBy("node").collect()
    assert [row.asDict() for row in rows] == [{**FOLDER, "node": node} for node in ("dc1", "dc2")]
    for table, frame in read.tables.items():
        assert frame.columns == [*SCHEMAS[table].names, "node"]


def test_inventory_options_name_a_place_for_each_sid() -> None:
    some = inventories.places_of(["dc1=/srv/dc1/", "dc2=s3a://bucket/a=b"])
    assert some == {"dc1": "/srv/dc1", "dc2": "s3a://bucket/a=b"}
    for argument in ("dc1", "dc1=", "=/srv"):
        with pytest.raises(InventoryError, match="NODE=PLACE"):
            inventories.places_of([argument])
    with pytest.raises(InventoryError, match="dc1 is given twice: /a and /b"):
        inventories.places_of(["dc1=/a", "dc1=/b"])


def test_0_and_61_inventories_are_refused(spark: SparkSession) -> None:
    assert "0 inventories are given" in read_error(spark)
    assert "61 inventories are given; give 1 to 60" in read_error(spark, **{f"dc{n}": "/nowhere" for n in range(61)})


def test_incomplete_or_foreign_inventory_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = inventory(tmp_path)
    assert f"{place}/{MANIFEST} is of node 'dc1', but was given for dc7" in read_error(spark, dc7=place)
    other = inventory(tmp_path, "dc2", cluster="another")
    said = read_error(spark, dc1=place, dc2=other)
    assert "several clusters: dc1 of 'test', dc2 of 'another'" in said
    change_manifest(place, format=99)
    assert f"{place}/{MANIFEST}: its format is 99" in read_error(spark, dc1=place)
    change_manifest(place, format=FORMAT, rows=dict.fromkeys(SCHEMAS.keys() - {"guids"}, 0))
    assert f"{place}/{MANIFEST}: {MANIFEST} does not count the rows of guids" in read_error(spark, dc1=place)
    Path(place, MANIFEST).write_text("{")
    assert f"{place}/{MANIFEST}" in read_error(spark, dc1=place)
    Path(place, MANIFEST).unlink()
    assert f"{place}/{MANIFEST} cannot be read" in read_error(spark, dc1=place)


def test_lost_files_of_an_inventory_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    place = inventory(tmp_path)
    change_manifest(place, rows={**dict.fromkeys(SCHEMAS, 0), "folders": 2})
    assert f"{place}/folders has 1 rows, but {MANIFEST} says 2" in read_error(spark, dc1=place)
    Path(place, part_name("heads", 0)).unlink()
    Path(place, "heads").rmdir()
    assert f"{place}/heads cannot be read" in read_error(spark, dc1=place)


@pytest.mark.long
def test_file_without_the_columns_of_its_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = inventory(tmp_path)
    columns: dict[str, list[str] | list[int] | list[bool]] = {
        "user": ["a"],
        "name": ["b"],
        "subscribed": [True],
        "time": [1],
    }
    add_part(place, "subscriptions", columns)
    said = read_error(spark, dc1=place)
    assert "part-00001.parquet" in said
    assert "has no column 'sid'" in said
    add_part(place, "subscriptions", {**columns, "sid": [7]})
    said = read_error(spark, dc1=place)
    assert "part-00001.parquet: column 'sid' is bigint, but must be string" in said


def test_file_that_is_not_parquet_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    place = inventory(tmp_path)
    Path(place, part_name("guids", 0)).write_bytes(b"no")
    said = read_error(spark, dc1=place)
    assert f"{place}/guids cannot be read as Parquet" in said
    assert "part-00000.parquet is not a Parquet file" in said


def test_columns_and_tables_of_later_versions_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    place = inventory(tmp_path)
    columns: dict[str, list[str] | list[int] | list[bool]] = {
        "user": ["a"], "name": ["b"], "subscribed": [True], "time": [1],
        "sid": ["dc1"], "colour": ["red"],
    }  # fmt: skip
    add_part(place, "subscriptions", columns)
    change_manifest(place, rows={**dict.fromkeys(SCHEMAS, 0), "folders": 1, "subscriptions": 1, "colours": 7})
    [row] = inventories.read(spark, {"dc1": place}).tables["subscriptions"].collect()
    assert row.asDict() == {"user": "a", "name": "b", "subscribed": True, "time": 1, "sid": "dc1", "node": "dc1"}


def test_nullable_column_is_refused_where_the_format_has_no_nulls(spark: SparkSession, tmp_path: Path) -> None:
    place = inventory(tmp_path)
    file = Path(place, part_name("folders", 0))
    table = pq.read_table(file)
    schema = pa.schema([field.with_nullable(nullable=field.name == "name") for field in table.schema])
    pq.write_table(table.cast(schema), file)
    assert read_error(spark, dc1=place).endswith(
        "folders/part-00000.parquet: column 'name' may be null; it is not a table of this format of inventories"
    )


def damage_file(place: Path) -> Path:
    file = place / part_name("guids", 0)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


def test_file_damaged_in_transit_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Pages have checksums, which show that the node wrote the file correctly."""
    generated = generate(tmp_path, Recipe(2000))
    file = damage_file(tmp_path / "dc2")
    read = inventories.read(spark, generated.places)
    with pytest.raises(Py4JJavaError, match="CRC checksum") as error:
        read.tables["guids"].collect()
    said = _explained(str(error.value), "")
    assert said.startswith(f"file://{file} cannot be read (")
    assert said.endswith("copy the inventory again, or write a new one")


@pytest.mark.long
def test_spark_settings_to_ignore_files_have_no_effect(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise unreadable rows, and the rows of a file removed meanwhile, would count as differences of their node."""
    generated = generate(tmp_path, Recipe(2000))
    file = damage_file(tmp_path / "dc2")
    with settings(spark, {f"spark.sql.files.ignore{what}Files": "true" for what in ("Corrupt", "Missing")}):
        guids = inventories.read(spark, generated.places).tables["guids"]
        with pytest.raises(Py4JJavaError, match="CRC checksum"):
            guids.collect()
        file.unlink()
        with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
            guids.collect()
