"""The outcome of two sides' rows of one GUID: the heart of `resync.merge.merge`, as expressions.

The row joined so far stands in the columns of STATE, all null if there is none; the row of the branch that joins is the
struct `other`, or null. Known of both sides' heads are `our_bits` (of the states joined so far), `their_bit`,
`our_uidnext`, `their_uidnext`, and `merge_modseq`, which a changed row gets. A mailbox that `takes_part` in this step
has such a branch; all others stay as they are.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.comparison.versions import STATE, name, names, share_placement

_CLAIM = ("uid", "claim_origin", "claim_seq")
_STAMP = ("time", "sid", "set")


def joined(paired: DataFrame) -> DataFrame:
    """Return the message as it stays, if it does, in the columns of STATE, and a flag `moves` if it needs a new UID.

    Restates `resync.merge.merge`.
    """
    rest = [name for name in paired.columns if name not in (*STATE, "other", "their_bit")]
    mine, other = F.col("mine"), F.col("other")
    return (
        paired.withColumn("mine", F.when(F.col("uid").isNotNull(), F.struct(*STATE)))
        .withColumns(
            {
                "changes": F.col("takes_part") & ~mine.eqNullSafe(other),
                "is_one": F.coalesce(share_placement(mine, other), F.lit(False)),
                "ours_stay": _stay(mine, other, F.col("their_bit")),
                "theirs_stay": _stay(other, mine, F.col("our_bits")),
                "ours_wins": _ours_wins(mine, other),
            }
        )
        .withColumn("is_ours", _is_ours())
        .withColumns(_survivor(mine, other))
        .withColumn("misleads", _misleads(mine, "our") | _misleads(other, "their"))
        .withColumn("moves", F.coalesce(F.col("takes_part") & F.col("misleads"), F.lit(False)))
        .select(*rest, *STATE, "moves")
    )


def _stay(row: Column, there: Column, bits: Column) -> Column:
    """Return the placements of a row that stay: the other side, of these bits, shows them or has not seen them.

    Restates `resync.merge._of_both`.
    """
    shown = F.coalesce(names(there["placements"]), F.array())
    stays = F.filter(
        row["placements"],
        lambda one: F.array_contains(shown, name(one)) | ~_has(bits, one["seen"]),
    )
    return F.coalesce(stays, F.array())


def _part(row: Column, names: tuple[str, ...]) -> Column:
    return F.struct(*(row[name].alias(name) for name in names))


def _has(bits: Column, seen: Column) -> Column:
    """Return True if one of the states of these bits has seen it."""
    return seen.bitwiseAND(bits) != 0


def _ours_wins(mine: Column, other: Column) -> Column:
    """Choose, for one placement, the UID of the side that knows the other's claim.

    Restates `resync.merge._of_later_claim`.
    """
    we_know, they_know = _has(F.col("our_bits"), other["claim_seen"]), _has(F.col("their_bit"), mine["claim_seen"])
    return F.when(we_know != they_know, we_know).otherwise(_part(mine, _CLAIM) >= _part(other, _CLAIM))


def _is_ours() -> Column:
    """Return True if the message keeps our row, False for theirs, null if its last placement is expunged.

    Restates `resync.merge._of_both`.
    """
    ours, theirs = F.size("ours_stay") > 0, F.size("theirs_stay") > 0
    return (
        F.when(~F.col("changes"), F.lit(True))
        .when(F.col("is_one"), F.col("ours_wins"))
        .when(ours & theirs, F.get("ours_stay", F.lit(0)) <= F.get("theirs_stay", F.lit(0)))
        .when(ours, F.lit(True))
        .when(theirs, F.lit(False))
    )


def _survivor(mine: Column, other: Column) -> dict[str, Column]:
    """Return the survivor's columns: all placements that stay, and the flags of both rows if both have one of them.

    Restates `resync.merge._of_both`.
    """
    found = {name: F.when(F.col("is_ours"), mine[name]).when(~F.col("is_ours"), other[name]) for name in STATE}
    changes = F.col("changes") & F.col("is_ours").isNotNull()
    both_count = F.col("changes") & (F.size("ours_stay") > 0) & (F.size("theirs_stay") > 0)
    found["modseq"] = F.when(changes, F.col("merge_modseq")).otherwise(found["modseq"])
    found["flags"] = F.when(both_count, last(mine["flags"], other["flags"])).otherwise(found["flags"])
    left = F.array_sort(F.array_union("ours_stay", "theirs_stay"))
    found["placements"] = F.when(changes, left).otherwise(found["placements"])
    return found


def last(one: Column, other: Column) -> Column:
    """Return each flag in the state of its later stamp, sorted by flag. Restates `resync.merge._last`."""
    states = F.map_zip_with(_by_flag(one), _by_flag(other), lambda _, mine, their: F.greatest(mine, their))
    listed = F.transform(
        F.map_entries(states),
        lambda entry: F.struct(entry["key"].alias("flag"), *(entry["value"][name].alias(name) for name in _STAMP)),
    )
    return F.when(one == other, one).otherwise(F.array_sort(listed))


def _by_flag(flags: Column) -> Column:
    return F.map_from_arrays(
        F.transform(flags, lambda one: one["flag"]), F.transform(flags, lambda one: _part(one, _STAMP))
    )


def _misleads(shown: Column, side: str) -> Column:
    """Return True if a client of this side could take the row's UID for another message's.

    A side that shows the message under this UID is misled by a placement that is new to it. Restates
    `resync.merge._misleads`.
    """
    is_same = F.coalesce(_part(shown, _CLAIM) == F.struct(*_CLAIM), F.lit(False))
    is_new = F.size(F.array_except(names(F.col("placements")), names(shown["placements"]))) > 0
    return F.when(is_same, is_new).otherwise(F.col("uid") < F.col(f"{side}_uidnext"))
