"""Each stage of an audit, on a small planted cluster, yields the columns that `spark.schemas` declares for it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from benchmarks.spark.generator import Recipe, generate
from benchmarks.spark.planting import KINDS
from spark.audit import plans
from spark.audit.audit import keep
from spark.comparison import mailboxes, merging, messages, projections, sums, versions
from spark.comparison.mailboxes import MailboxCounts
from spark.comparison.versions import Keep
from spark.reading import inventories
from spark.reading.inventories import Inventories
from spark.schemas import NODE, PLAN, SCHEMAS, STAGES

READ = {
    f"inventories.{table}": StructType([*schema, StructField(NODE, StringType())]) for table, schema in SCHEMAS.items()
}
PLANS = {f"plans.{table}": schema for table, schema in PLAN.items()}
TWO_STEPS = MailboxCounts({}, {}, steps=2, dots=0)


@pytest.fixture(scope="module")
def read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Inventories:
    """Read the inventories of three nodes whose mailboxes differ in all ways."""
    made = generate(tmp_path_factory.mktemp("inventories"), Recipe(600, sizes=(20, 30), planted_every=2))
    assert len(made.kinds) == len(KINDS)
    return inventories.read(spark, made.places)


def stages(read: Inventories, counts: MailboxCounts | None, keep: Keep) -> dict[str, DataFrame]:
    """Put the stages together as an audit does. Only `keep` computes anything, and the summary if `counts` is None."""
    heads, rows, folders, guids = (read.tables[table] for table in ("heads", "messages", "folders", "guids"))
    compared = keep(sums.compared(read.tables, read.nodes))
    classified = keep(mailboxes.classified(compared, heads, folders, read.nodes))
    counts = counts or mailboxes.summary(classified)
    gathered = keep(versions.gathered(classified, rows, read.nodes, counts, keep))
    folded = keep(merging.folded(gathered, counts.steps, keep))
    differing = keep(messages.kinds(folded, read.nodes))
    damaged = keep(projections.damaged(rows, guids))
    planned = keep(plans.mailboxes(classified, differing, folders))
    return {
        "sums.compared": compared,
        "mailboxes.classified": classified,
        "versions.gathered": gathered,
        "merging.folded": folded,
        "merging.rows": merging.rows(folded),
        "merging.heads": merging.heads(classified, differing),
        "messages.kinds": differing,
        "projections.damaged": damaged,
        "projections.counted": projections.counted(damaged),
        "projections.miscounted": projections.miscounted(heads, rows),
        "plans.mailboxes": planned,
        "plans.messages": plans.messages(differing, planned),
        "plans.indexes": plans.indexes(damaged),
    }


def columns(schemas: Mapping[str, StructType]) -> list[str]:
    return [f"{name}: {field.simpleString()}" for name, schema in schemas.items() for field in schema]


@pytest.mark.long
def test_each_stage_yields_the_names_and_types_of_its_schema(read: Inventories, spark: SparkSession) -> None:
    def without_rows(frame: DataFrame) -> DataFrame:
        return spark.createDataFrame([], frame.schema)  # without that, the query plan would double at each stage

    of_inventories = {f"inventories.{table}": frame for table, frame in read.tables.items()}
    found = of_inventories | stages(read, TWO_STEPS, without_rows)
    assert columns({name: frame.schema for name, frame in found.items()}) == columns({**READ, **STAGES, **PLANS})


@pytest.mark.long
def test_no_stage_yields_nulls_that_its_schema_forbids(read: Inventories, spark: SparkSession) -> None:
    """Nulls within lists and structs count too. Inventories are excluded: reading them checks for nulls."""
    for name, frame in stages(read, None, keep).items():
        rows = frame.collect()
        assert rows
        spark.createDataFrame(rows, {**STAGES, **PLANS}[name], verifySchema=True)
