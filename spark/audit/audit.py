"""The audit of a cluster: from inventories of its nodes to a repair plan, a summary and a report (design section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from resync import plan
from spark.audit import counting, files, plans
from spark.comparison import mailboxes, merging, messages, projections, sums, versions
from spark.reading import inventories
from spark.reading.inventories import Inventories, InventoryError
from spark.report.page import html
from spark.report.summary import Summary

SUMMARY, REPORT = "summary.json", "report.html"

UNFINISHED = "audit.unfinished"
"""Name of a file that marks an unfinished audit: while it lies there, no other file counts."""

_AUDIT = {plan.MANIFEST, *plan.TABLES, SUMMARY, REPORT, UNFINISHED}


def audit(
    spark: SparkSession, places: Mapping[str, str], to: str, *, overwrite: bool, tell: Callable[[str], None]
) -> Summary:
    """Compare the inventories at `places`, by SIDs, and write the differences below `to`.

    `tell` is called with a description of the next step. `overwrite`: replace a former audit. Raises InventoryError,
    and Spark's errors; the files below `to` are no plan then.
    """
    _check_room(spark, to, overwrite=overwrite)
    tell("reading")
    read = inventories.read(spark, places)
    _make_room(spark, to)
    tell("comparing mailboxes")
    compared = keep(sums.compared(read.tables, read.nodes))
    related = keep(mailboxes.classified(compared, read.tables["heads"], read.tables["folders"], read.nodes))
    relations = mailboxes.summary(related)
    tell("comparing messages")
    tables = _write_plan(read, related, relations, to)
    tell("comparing indexes")
    wrong = keep(projections.damaged(read.tables["messages"], read.tables["guids"]))
    plans.write(plans.indexes(wrong), "indexes", to, "mailbox", "guid")
    tell("counting")
    found = counting.summary(read, related, relations, tables, projections.counted(wrong))
    files.write(spark, f"{to}/{SUMMARY}", found.to_json())
    files.write(spark, f"{to}/{REPORT}", html(found).encode())
    files.write(spark, f"{to}/{plan.MANIFEST}", _manifest(read, tables.mailboxes, found).to_json())
    files.remove(spark, f"{to}/{UNFINISHED}")
    return found


def keep(frame: DataFrame) -> DataFrame:
    """Return the DataFrame, computed once.

    If Spark has a directory for checkpoints, the result outlives its process.
    """
    has_directory = frame.sparkSession.sparkContext.getCheckpointDir() is not None
    return frame.checkpoint() if has_directory else frame.localCheckpoint()


def _check_room(spark: SparkSession, to: str, *, overwrite: bool) -> None:
    """Raise InventoryError if the directory holds anything but a former audit, complete or interrupted."""
    try:
        there = files.names(spark, to)
    except NotADirectoryError:
        raise InventoryError(f"{to} is not a directory") from None
    if there and not overwrite:
        raise InventoryError(f"{to} is not empty; --overwrite replaces an earlier audit")
    others = [name for name in there if name.removeprefix(".").removesuffix(".crc") not in _AUDIT]
    if others:
        raise InventoryError(f"{to} holds {others[0]}, which does not belong to an audit: nothing is overwritten")
    if there and not {plan.MANIFEST, UNFINISHED} & set(there):
        raise InventoryError(f"{to} is not empty and holds no audit: nothing is overwritten")


def _make_room(spark: SparkSession, to: str) -> None:
    """Mark the directory as an unfinished audit and remove the former one."""
    files.write(spark, f"{to}/{UNFINISHED}", b"")
    for name in (plan.MANIFEST, *plan.TABLES, SUMMARY, REPORT):  # the manifest first: a plan without it is incomplete
        files.remove(spark, f"{to}/{name}")


def _write_plan(read: Inventories, related: DataFrame, relations: mailboxes.MailboxCounts, to: str) -> plans.Tables:
    gathered = versions.gathered(related, read.tables["messages"], read.nodes, relations, keep)
    differing = keep(messages.kinds(merging.folded(gathered, relations.steps, keep), read.nodes))
    planned = keep(plans.mailboxes(related, differing, read.tables["folders"]))
    plans.write(planned, "mailboxes", to, "uidvalidity", "user", "mailbox")  # trees, which have 0, come first
    plans.write(plans.messages(differing, planned), "messages", to, "mailbox", "guid")
    return plans.Tables(planned, differing)


def _manifest(read: Inventories, planned: DataFrame, found: Summary) -> plan.PlanManifest:
    nodes = {sid: plan.Taken(manifest.origin, manifest.taken_ms) for sid, manifest in read.manifests.items()}
    counts = planned.groupBy(plans.MASTER).count().collect()
    mailboxes = {one[plans.MASTER]: one["count"] for one in sorted(counts)}
    wrong = sum(sum(node.index.values()) for node in found.nodes)
    return plan.PlanManifest(found.cluster, nodes, mailboxes, found.differing, wrong)
