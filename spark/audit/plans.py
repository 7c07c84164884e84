"""Build the tables of a repair plan (`resync.plan`) from a comparison, and write them."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from resync.plan import PARTITIONS, TABLES
from spark.comparison import merging
from spark.comparison.mailboxes import EQUAL
from spark.schemas import NODE

MASTER = PARTITIONS["mailboxes"]


class Tables(NamedTuple):
    """Two tables of a plan."""

    mailboxes: DataFrame
    messages: DataFrame


def mailboxes(related: DataFrame, differing: DataFrame, folders: DataFrame) -> DataFrame:
    """Return the table of mailboxes.

    `related`: from `mailboxes.classified`; `differing`: from `messages.kinds`; `folders`: from the inventories.
    """
    unequal = related.where(F.col("relation") != EQUAL).select("*", _master().alias(MASTER))
    counts = differing.groupBy("mailbox").agg(F.count("*").alias("differing"))
    numbers = merging.heads(related, differing).select("mailbox", "uidnext", "highestmodseq")
    names = (
        folders.join(unequal.select("mailbox"), "mailbox", "left_semi")
        .groupBy("mailbox")
        .agg(F.max_by("name", F.struct("time", "sid")).alias("folder"))
    )
    own = [name for name in numbers.columns if name != "mailbox"]
    return (
        unequal.join(counts, "mailbox", "left")
        .join(numbers, "mailbox", "left")
        .join(names, "mailbox", "left")
        .withColumns({name: F.when(~F.col("is_tree"), F.col(name)) for name in own})
        .withColumns(
            {
                "uidvalidity": F.array_max(F.transform("states", lambda one: one["uidvalidity"])),
                "heads": F.transform("states", _head),
                "differing": F.coalesce("differing", F.lit(0)),
            }
        )
        .select(*(column.name for column in TABLES["mailboxes"]), MASTER)
    )


def messages(differing: DataFrame, planned: DataFrame) -> DataFrame:
    """Return the table of messages. `planned`: the table of mailboxes."""
    of_mailboxes = planned.select("mailbox", "user", MASTER)
    return differing.join(of_mailboxes, "mailbox").select(*(column.name for column in TABLES["messages"]), MASTER)


def indexes(damaged: DataFrame) -> DataFrame:
    """Return the table of indexes. `damaged`: from `projections.damaged`."""
    return damaged.select(*(column.name for column in TABLES["indexes"]), NODE)


def write(rows: DataFrame, table: str, to: str, *order: str) -> None:
    """Write a table below `to`, in files of about the same size, each sorted by these columns."""
    partition = PARTITIONS[table]
    spread = rows.hint("rebalance", partition).sortWithinPartitions(partition, *order)
    spread.write.partitionBy(partition).option("compression", "zstd").parquet(f"{to}/{table}")


def _master() -> Column:
    """Return the node that takes itself for the master, or else a node that no other one is ahead of."""
    leading = F.filter("states", lambda one: one["leads"])
    first = F.get("states", F.get("branches", F.lit(0)))
    return F.coalesce(F.get(leading, F.lit(0))[NODE], first[NODE])


def _head(state: Column) -> Column:
    return F.struct(state[NODE].alias("node"), state["head_origin"].alias("origin"), state["head_seq"].alias("seq"))
