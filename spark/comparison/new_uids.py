"""Number rows by mailbox, even if a single mailbox has more rows than one task should handle.

Rows are spread by ranges of their order. A row's number is then its place in its part, plus the mailbox's rows in the
parts before, which is a sum of a few counts. A window by mailbox would bring a whole mailbox to one task.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.comparison.versions import Keep

_PART_BITS = 33  # of Spark's monotonically increasing ids: the partition's number is above these bits, the row's below


def numbered(rows: DataFrame, order: Sequence[str], keep: Keep) -> DataFrame:
    """Add `number`: 0, 1, ... in each `mailbox` by these columns, which must tell its rows apart.

    `keep` is called with `rows` in their places, and must fix them there: `rows` should have no columns that are not
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
