"""Running numbers by mailbox, where a single mailbox may have more rows than one task should see.

Rows are spread by ranges of their order, so that a row's place in its part says all but how many of its mailbox came in
the parts before: sums of a few counts. A window by mailbox would bring all of a mailbox to one task.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.versions import Keep

_PART_BITS = 33  # of Spark's monotonically increasing ids: above them the partition's number, below it the row's


def numbered(rows: DataFrame, order: Sequence[str], keep: Keep) -> DataFrame:
    """With `number`: 0, 1, ... in each `mailbox` by these columns, which are to tell its rows apart.

    `keep` is called with `rows` in their places, and must see to it that they stay there: have no more columns than are
    needed.
    """
    columns = "mailbox", *order
    placed = keep(
        rows.repartitionByRange(*columns)
        .sortWithinPartitions(*columns)
        .withColumn("position", F.monotonically_increasing_id())
        .withColumn("part", F.shiftright("position", _PART_BITS))
    )
    pieces = placed.groupBy("mailbox", "part").agg(F.min("position").alias("first"), F.count("*").alias("count"))
    earlier = Window.partitionBy("mailbox").orderBy("part").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum("count").over(earlier), F.lit(0))
    offsets = pieces.select("mailbox", "part", (before - F.col("first")).alias("offset"))
    return placed.join(offsets, ["mailbox", "part"]).select(
        *rows.columns, (F.col("position") + F.col("offset")).alias("number")
    )
