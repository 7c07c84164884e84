"""Find the mailboxes that are not equal without moving their rows, by sums of hashes like the nodes' own fingerprints.

A row has two hashes of 64 bits over all its columns, whose sums do not depend on the order of rows. Each task adds up
the rows that it reads before anything is shuffled, and a mailbox's rows lie together in an inventory, so about one
record per mailbox and node is moved. Halves of 32 bits are added, which do not overflow below 2**31 rows. The hashes
find accidents, not forgeries; against forgeries the nodes' digests are compared as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.schemas import NODE, SCHEMAS, TOTAL

SUMS = tuple(TOTAL.names)

_LOW = (1 << 32) - 1


def halves(columns: Sequence[Column]) -> list[Column]:
    """Return four numbers of 32 bits, named as SUMS: two hashes of all these columns.

    A leading constant is the seed.
    """
    found: list[Column] = []
    for seed in (1, 2):
        value = F.xxhash64(F.lit(seed), *columns)
        found += [F.shiftright(value, 32), value.bitwiseAND(F.lit(_LOW))]
    return [half.alias(name) for half, name in zip(found, SUMS, strict=True)]


def compared(tables: Mapping[str, DataFrame], nodes: Sequence[str]) -> DataFrame:
    """Return one row per mailbox: `mailbox`, `is_tree`, `sums` and `is_equal`. Worth persisting: it is small.

    `tables`: of inventories. A folder tree is a mailbox without messages; its rows are hashed. `sums` has for each node
    with anything of the mailbox: `node`, `has_head`, `said` (the number of rows by its head), `rows` (the actual
    number), and `total`, the sums over the rows. `is_equal`: every node has the same head, with all its numbers, over
    the same rows, as many as the head says.
    """
    rows = (_of_messages(tables["messages"]), _of_heads(tables["heads"]), _of_trees(tables))
    one_node = reduce(DataFrame.unionByName, rows).groupBy("mailbox", NODE).agg(
        (F.count("said") > 0).alias("has_head"),
        F.coalesce(F.max("is_tree"), F.lit(False)).alias("is_tree"),
        F.coalesce(F.sum("said"), F.lit(0)).alias("said"),
        F.max("head_a").alias("head_a"),
        F.max("head_b").alias("head_b"),
        F.sum("rows").alias("rows"),
        F.struct(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in SUMS)).alias("total"),
    )  # fmt: skip
    shown = ("has_head", "said", "head_a", "head_b", "rows", "total")
    return (
        one_node.groupBy("mailbox")
        .agg(F.max("is_tree").alias("is_tree"), F.collect_list(F.struct(NODE, *shown)).alias("sums"))
        .withColumn("is_equal", _is_equal(F.col("sums"), shown, len(nodes)))
    )


def _is_equal(sums: Column, shown: Sequence[str], nodes: int) -> Column:
    ways = F.array_distinct(F.transform(sums, lambda one: F.struct(*(one[name].alias(name) for name in shown))))
    sound = F.forall(sums, lambda one: one["has_head"] & (one["said"] == one["rows"]))
    return (F.size(sums) == nodes) & (F.size(ways) == 1) & sound


def _of_messages(messages: DataFrame) -> DataFrame:
    columns = [F.col(name) for name in SCHEMAS["messages"].names if name != "mailbox"]
    nothing = F.lit(None).cast("long")
    return messages.select(
        "mailbox", NODE, nothing.cast("boolean").alias("is_tree"),
        nothing.alias("said"), nothing.alias("head_a"), nothing.alias("head_b"),
        F.lit(1).cast("long").alias("rows"), *halves(columns),
    )  # fmt: skip


def _of_trees(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of trees as rows of their users' trees; a user without a tree gets one without a head."""
    trees = tables["heads"].where("uidvalidity = 0").select(NODE, "user", F.col("mailbox").alias("tree"))
    nothing = F.lit(None).cast("long")
    sides = []
    for seed, table in enumerate(("folders", "subscriptions", "annotations")):
        columns = [F.lit(seed), *map(F.col, SCHEMAS[table].names)]
        sides.append(tables[table].select(NODE, "user", *halves(columns)))
    return reduce(DataFrame.unionByName, sides).join(trees, [NODE, "user"], "left").select(
        F.coalesce("tree", F.unhex(F.md5("user"))).alias("mailbox"), NODE, F.lit(True).alias("is_tree"),
        nothing.alias("said"), nothing.alias("head_a"), nothing.alias("head_b"),
        F.lit(0).cast("long").alias("rows"), *SUMS,
    )  # fmt: skip


def _of_heads(heads: DataFrame) -> DataFrame:
    """Return the heads as rows. The current master is left out, because it is not part of a mailbox's state."""
    names = [name for name in SCHEMAS["heads"].names if name not in {"mailbox", "context", "master"}]
    columns = [*map(F.col, names), F.array_sort(F.map_entries("context"))]
    nothing = (F.lit(None).cast("long").alias(name) for name in SUMS)
    return heads.select(
        "mailbox", NODE, (F.col("uidvalidity") == 0).alias("is_tree"), F.col("messages").alias("said"),
        F.xxhash64(F.lit(1), *columns).alias("head_a"),
        F.xxhash64(F.lit(2), *columns).alias("head_b"), F.lit(0).cast("long").alias("rows"), *nothing,
    )  # fmt: skip
