"""Compare each node with itself: the index of GUIDs with the one that follows from its messages.

The index is in the order of GUIDs, in which a mailbox's rows lie far apart. So sums are kept by buckets of hashes, few
enough for each task; only rows of buckets whose sums differ are compared one by one. The messages are trusted.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.comparison.sums import SUMS, halves
from spark.schemas import NODE

BUCKETS = 1 << 14
MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"

_KEY = (NODE, "mailbox", "guid")
_POINTER = ("uid", "origin", "seq", "change")


def damaged(messages: DataFrame, guids: DataFrame) -> DataFrame:
    """Return one row for each wrong row of an index: `node`, `mailbox`, `guid`, `what`, and the correct UID.

    `what`: `missing`, `different` (another UID or placement), `extra` (of no message; its `uid` is null).
    """
    shown, index = _with_bucket(messages), _with_bucket(guids)
    unequal = F.broadcast(_unequal(shown, index))
    should, is_ = (
        side.join(unequal, [NODE, "bucket"], "left_semi").select(*_KEY, F.struct(*_POINTER).alias(name))
        for side, name in ((shown, "should"), (index, "is_"))
    )
    what = (
        F.when(F.col("is_").isNull(), F.lit(MISSING))
        .when(F.col("should").isNull(), F.lit(EXTRA))
        .when(F.col("is_") != F.col("should"), F.lit(DIFFERENT))
    )
    return (
        should.join(is_, list(_KEY), "full_outer")
        .select(*_KEY, what.alias("what"), F.col("should.uid").alias("uid"))
        .where(F.col("what").isNotNull())
    )


def counted(damaged: DataFrame) -> DataFrame:
    """Return `node`, `what`, `count`: the number of such rows in its index. A node without any has no row."""
    return damaged.groupBy(NODE, "what").count()


def miscounted(heads: DataFrame, messages: DataFrame) -> DataFrame:
    """Return `node`, `count`: the number of its mailboxes whose message count is wrong.

    Messages of a mailbox without a head count as well. A node without any has no row.
    """
    there = messages.groupBy(NODE, "mailbox").agg(F.count("*").alias("there"))
    said = heads.select(NODE, "mailbox", F.col("messages").alias("said"))
    both = said.join(there, [NODE, "mailbox"], "full_outer")
    return both.where(F.coalesce("said", F.lit(-1)) != F.coalesce("there", F.lit(0))).groupBy(NODE).count()


def _with_bucket(rows: DataFrame) -> DataFrame:
    bucket = F.pmod(F.xxhash64("mailbox", "guid"), F.lit(BUCKETS)).cast("int")
    return rows.select(*_KEY, *_POINTER, bucket.alias("bucket"))


def _unequal(shown: DataFrame, index: DataFrame) -> DataFrame:
    """Return the node's buckets in which the sums of the two sides differ."""
    columns = [F.col(name) for name in ("mailbox", "guid", *_POINTER)]
    sides = []
    for sign, side in ((1, shown), (-1, index)):
        values = [half * sign for half in halves(columns)]
        named = (value.alias(name) for value, name in zip(values, SUMS, strict=True))
        sides.append(side.select(NODE, "bucket", F.lit(sign).alias("rows"), *named))
    totals = (
        sides[0]
        .unionByName(sides[1])
        .groupBy(NODE, "bucket")
        .agg(*(F.sum(name).alias(name) for name in ("rows", *SUMS)))
    )
    return totals.where(" OR ".join(f"{name} != 0" for name in ("rows", *SUMS))).select(NODE, "bucket")
