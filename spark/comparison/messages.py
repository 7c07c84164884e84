"""Classify the differences of each message between nodes, by the rule of `resync.differing`.

For each version and each node that shows no placement of it: if the node has seen the entries that added it, it was
expunged there, otherwise it is missing there. So a message may be both at one node, where placements of one GUID meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.comparison.bits import bits_of, has
from spark.comparison.versions import share_placement

TEXT = ("received_ms", "size_bytes", "content_hash")
MERGED = ("uid", "modseq", "flags", "content_hash", "given")
"""Columns of the message after joining."""


def kinds(folded: DataFrame, nodes: Sequence[str]) -> DataFrame:
    """Return one row for each message that is not the same at all `nodes`. `folded`: see `merging`.

    Columns: `mailbox`, `guid`; `missing_on`, `expunged_on`: arrays of SIDs; `uid_conflict`: shown under a UID that it
    cannot keep; `flags_differ`; `damage`: two bodies of one placement; `only_modseq`: only the MODSEQ or the claim
    differs, which clients do not see; and MERGED, null if the message is expunged. In a damaged mailbox every
    difference is `damage` and nothing else. Restates `resync.differing.kinds`.
    """
    versions = F.col("versions")
    first = F.get(versions, F.lit(0))["row"]
    differs = (F.size(versions) != len(nodes)) | F.exists(versions, lambda one: one["row"] != first)
    missing = _or_of(versions, lambda one: _lacking(one, versions).bitwiseAND(F.bitwise_not(_seen(one["row"]))))
    expunged = _or_of(versions, lambda one: _lacking(one, versions).bitwiseAND(_seen(one["row"])))
    uid = F.col("uid")
    found = folded.where(differs).select(
        "mailbox",
        "guid",
        _named(missing, nodes).alias("missing_on"),
        _named(expunged, nodes).alias("expunged_on"),
        F.coalesce(F.exists(versions, lambda one: one["row"]["uid"] != uid), F.lit(False)).alias("uid_conflict"),
        _any_two(versions, lambda one, other: _same_text(one, other) & (one["flags"] != other["flags"])).alias(
            "flags_differ"
        ),
        _any_two(versions, lambda one, other: ~_same_text(one, other)).alias("damage"),
        *MERGED,
        (F.size("plan.places") == 0).alias("is_damaged"),
    )
    told = (F.size("missing_on") > 0) | (F.size("expunged_on") > 0)
    only_modseq = ~(told | F.expr("uid_conflict OR flags_differ OR damage"))
    return found.withColumn("only_modseq", only_modseq).withColumns(_nothing_believed()).drop("is_damaged")


def _nothing_believed() -> dict[str, Column]:
    """Return the columns, with those of a damaged mailbox reduced to `damage`.

    Missing messages may have been lost there, and the outcome for a message is unknown.
    """
    nowhere = F.array().cast("array<string>")
    values = {"missing_on": nowhere, "expunged_on": nowhere, "damage": F.lit(True)}
    values |= dict.fromkeys(("uid_conflict", "flags_differ", "only_modseq"), F.lit(False))
    values |= dict.fromkeys(MERGED, F.lit(None))
    return {name: F.when(~F.col("is_damaged"), F.col(name)).otherwise(value) for name, value in values.items()}


def _same_text(one: Column, other: Column) -> Column:
    return F.struct(*(one[name] for name in TEXT)) == F.struct(*(other[name] for name in TEXT))


def _any_two(versions: Column, differ: Callable[[Column, Column], Column]) -> Column:
    """Return True if two versions of one placement differ according to `differ`."""
    return F.exists(
        versions,
        lambda one: F.exists(
            versions, lambda other: share_placement(one["row"], other["row"]) & differ(one["row"], other["row"])
        ),
    )


def _lacking(one: Column, versions: Column) -> Column:
    """Return bits of the states that do not show this version's placement, with all bits beyond the last state set."""
    showing = F.filter(versions, lambda other: share_placement(one["row"], other["row"]))
    return F.bitwise_not(bits_of(F.transform(showing, lambda other: other["place"])))


def _seen(row: Column) -> Column:
    """Return bits of the states that have seen all placements of the row. Restates `resync.differing._has_seen_all`."""
    return F.aggregate(row["placements"], F.lit(-1).cast("long"), lambda found, one: found.bitwiseAND(one["seen"]))


def _or_of(versions: Column, bits: Callable[[Column], Column]) -> Column:
    return F.aggregate(versions, F.lit(0).cast("long"), lambda found, one: found.bitwiseOR(bits(one)))


def _named(bits: Column, nodes: Sequence[str]) -> Column:
    """Return the SIDs of the states whose bits are set.

    Putting the bits into an array computes them once, not for each SID.
    """
    sids = F.array(*map(F.lit, nodes))
    named = F.transform(F.array(bits), lambda found: F.filter(sids, lambda _, place: has(found, place)))
    return F.get(named, F.lit(0))
