"""The outcome of two sides' rows of one GUID: the heart of `resync.merge.merge`, as expressions.

The row joined so far stands in the columns of STATE, all null if there is none; the row of the branch that joins is the
struct `other`, or null. Known of both sides' heads are `our_bits` (of the states joined so far), `their_bit`,
`our_uidnext`, `their_uidnext`, and `merge_modseq`, which a changed row gets. A mailbox that `takes_part` in this step
has such a branch; all others stay as they are.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.versions import STATE

AGE = ("seq", "origin", "change")
"""The columns that tell placements apart, in the order of age."""
_CLAIM = ("uid", "claim_origin", "claim_seq")
_STAMP = ("time", "sid", "set")


def joined(paired: DataFrame) -> DataFrame:
    """Return the surviving row, if any, in the columns of STATE.

    Flags are added: `moves` if it needs a new UID, `is_double` if it is placed anew as well.
    """
    rest = [name for name in paired.columns if name not in (*STATE, "other", "their_bit")]
    mine, other = F.col("mine"), F.col("other")
    age, others_age = _part(mine, AGE), _part(other, AGE)
    return (
        paired.withColumn("mine", F.when(F.col("uid").isNotNull(), F.struct(*STATE)))
        .withColumns(
            {
                "changes": F.col("takes_part") & ~mine.eqNullSafe(other),
                "is_one": F.coalesce(age == others_age, F.lit(False)),
                "ours_stays": mine.isNotNull() & ~_has(F.col("their_bit"), mine["dot_seen"]),
                "theirs_stays": other.isNotNull() & ~_has(F.col("our_bits"), other["dot_seen"]),
                "ours_is_older": age <= others_age,
                "ours_wins": _ours_wins(mine, other),
            }
        )
        .withColumn("is_double", _is_double())
        .withColumn("is_ours", _is_ours())
        .withColumns(_survivor(mine, other))
        .withColumn("moves", F.coalesce(F.col("takes_part") & (F.col("is_double") | _misleads()), F.lit(False)))
        .select(*rest, *STATE, "moves", "is_double")
    )


def _part(row: Column, names: tuple[str, ...]) -> Column:
    return F.struct(*(row[name].alias(name) for name in names))


def _has(bits: Column, seen: Column) -> Column:
    """Return True if one of the states of these bits has seen it."""
    return seen.bitwiseAND(bits) != 0


def _ours_wins(mine: Column, other: Column) -> Column:
    """Choose, for one placement, the UID of the side that knows the other's claim."""
    we_know, they_know = _has(F.col("our_bits"), other["claim_seen"]), _has(F.col("their_bit"), mine["claim_seen"])
    return F.when(we_know != they_know, we_know).otherwise(_part(mine, _CLAIM) >= _part(other, _CLAIM))


def _is_double() -> Column:
    """Return True if the sides show the GUID as two placements that both stay."""
    return F.col("changes") & ~F.col("is_one") & F.col("ours_stays") & F.col("theirs_stays")


def _is_ours() -> Column:
    """Return True if the GUID keeps our row, False for theirs, null if the message is expunged."""
    return (
        F.when(~F.col("changes"), F.lit(True))
        .when(F.col("is_one"), F.col("ours_wins"))
        .when(F.col("is_double"), F.col("ours_is_older"))
        .when(F.col("ours_stays"), F.lit(True))
        .when(F.col("theirs_stays"), F.lit(False))
    )


def _survivor(mine: Column, other: Column) -> dict[str, Column]:
    """Return the survivor's columns, with the flags of both rows if they are one placement or become one."""
    found = {name: F.when(F.col("is_ours"), mine[name]).when(~F.col("is_ours"), other[name]) for name in STATE}
    changes = F.col("changes") & F.col("is_ours").isNotNull()
    both_count = F.col("changes") & (F.col("is_one") | F.col("is_double"))
    found["modseq"] = F.when(changes, F.col("merge_modseq")).otherwise(found["modseq"])
    found["flags"] = F.when(both_count, last(mine["flags"], other["flags"])).otherwise(found["flags"])
    return found


def last(one: Column, other: Column) -> Column:
    """Return each flag in the state of its later stamp, sorted by flag."""
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


def _misleads() -> Column:
    """Return True if a client of either side could have seen, or been promised, another message under the row's UID."""
    uid, seen = F.col("uid"), F.col("claim_seen")
    ours = ~_has(F.col("our_bits"), seen) & (uid < F.col("our_uidnext"))
    return ours | (~_has(F.col("their_bit"), seen) & (uid < F.col("their_uidnext")))
