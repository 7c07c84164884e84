"""Compute `resync.merge.merge_all` for all mailboxes at once, under the rule "renumber".

The branches of a mailbox are folded step by step, as `merge_all` does. The result of a step for a message follows from
its two versions alone (`pairs`); only messages that need new UIDs are put in order (`new_uids`). A damaged mailbox
takes no part, since its rows cannot be trusted.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.comparison import contexts, new_uids, pairs
from spark.comparison.bits import bit, bits_of
from spark.comparison.mailboxes import DAMAGED, EQUAL
from spark.comparison.versions import AGE, ROW, STATE, Keep, names


def folded(gathered: DataFrame, steps: int, keep: Keep) -> DataFrame:
    """Return the outcome for each message. `gathered`: see `versions`; `steps`: of `mailboxes.MailboxCounts`.

    Columns are added for STATE, as merged, null if the message is expunged or its mailbox damaged, and for `given`, the
    last new UID that the message got on the way. `keep` is called with DataFrames that are used more than once, and
    should checkpoint them: a plan of many steps costs more than the data. A mailbox is kept as often as it has steps.

    Restates `resync.merge.merge_all`.
    """
    first = gathered.withColumn("first", _at(F.get("plan.places", F.lit(0))))
    rest = [name for name in first.columns if name != "first"]
    found = first.select(*rest, *(F.col(f"first.{name}") for name in STATE), F.lit(None).cast("long").alias("given"))
    done = []
    for step in range(1, steps + 1):
        found = _joined(found, step, keep)
        if step < steps:
            goes_on = F.size("plan.places") > step + 1
            done.append(found.where(~goes_on))
            found = found.where(goes_on)
    return reduce(DataFrame.unionByName, done, found)


def rows(folded: DataFrame) -> DataFrame:
    """Return the merged messages in the columns of the table of messages, without those that `versions` leaves out."""
    first = F.get("placements", F.lit(0))
    also = names(F.slice("placements", 2, F.size("placements")))
    placed = {name: first[name] for name in AGE} | {"also": also}
    return folded.where(F.col("uid").isNotNull()).withColumns(placed).select("mailbox", "guid", *ROW)


def heads(mailboxes: DataFrame, given: DataFrame) -> DataFrame:
    """Return `mailbox`, and its `uidnext`, `highestmodseq`, `risen` and `context` after joining all branches.

    `given`: has `mailbox` and `given`, see `folded`, of all messages that got a new UID. Damaged mailboxes are left
    out. Restates `resync.merge.merge`.
    """
    merges = F.size("branches") - 1
    branches = F.transform("branches", lambda place: F.get("states", place))
    context = F.aggregate(branches, contexts.empty(), lambda found, one: contexts.joined(found, one["context"]))
    own = F.when(merges > 0, F.map_from_arrays(F.array(F.lit("")), F.array(merges.cast("long"))))
    modseqs = F.transform(branches, lambda one: one["highestmodseq"])
    uidnext = F.array_max(F.transform(branches, lambda one: one["uidnext"]))
    return (
        mailboxes.where(~F.col("relation").isin(EQUAL, DAMAGED))
        .join(_tops(given), "mailbox", "left")
        .select(
            "mailbox",
            F.greatest(uidnext, "top").alias("uidnext"),
            _modseq_after(modseqs, merges).alias("highestmodseq"),
            F.array_max(F.transform(branches, lambda one: one["risen"])).alias("risen"),
            F.map_concat(context, F.coalesce(own, contexts.empty())).alias("context"),
        )
    )


def _tops(found: DataFrame) -> DataFrame:
    """Return by mailbox the lowest number above all UIDs that were given anew so far."""
    given = found.where(F.col("given").isNotNull())
    return given.groupBy("mailbox").agg((F.max("given") + 1).alias("top"))


def _joined(before: DataFrame, step: int, keep: Keep) -> DataFrame:
    """Join the branch of this number to the previous result."""
    judged = keep(pairs.joined(_paired(before, step)))
    stays, moves = judged.where(~F.col("moves")), _renumbered(judged.where("moves"), step, keep)
    return stays.unionByName(moves).select(*before.columns)


def _paired(before: DataFrame, step: int) -> DataFrame:
    """Add the row of the branch of this number, `other`, and the facts about both sides' heads that `pairs` needs."""
    top = F.lit(None).cast("long")
    if step > 1:
        before, top = before.join(_tops(before), "mailbox", "left"), F.col("top")
    ours = F.slice("plan.places", 1, step)
    theirs = F.get("plan.places", F.lit(step))
    return before.select(
        *(name for name in before.columns if name != "top"),
        (F.size("plan.places") > step).alias("takes_part"),
        _at(theirs).alias("other"),
        bits_of(ours).alias("our_bits"),
        F.coalesce(bit(theirs), F.lit(0)).alias("their_bit"),
        F.greatest(F.array_max(F.slice("plan.uidnexts", 1, step)), top).alias("our_uidnext"),
        F.get("plan.uidnexts", F.lit(step)).alias("their_uidnext"),
        _modseq_after(F.col("plan.modseqs"), F.lit(step)).alias("merge_modseq"),
    )


def _renumbered(displaced: DataFrame, step: int, keep: Keep) -> DataFrame:
    """Give new UIDs by age, above both UIDNEXTs.

    From here on the context of the result includes the merge's own entry. Restates `resync.merge.merge`.
    """
    first = F.get("placements", F.lit(0))
    ages = (first[name].alias(name) for name in AGE)
    in_order = new_uids.numbered(displaced.select("mailbox", *ages, "guid"), (*AGE, "guid"), keep)
    given = F.greatest("our_uidnext", "their_uidnext") + F.col("number")
    found = displaced.join(in_order.select("mailbox", "guid", "number"), ["mailbox", "guid"])
    return found.select(*displaced.drop("given").columns, given.alias("given")).withColumns(
        {
            "uid": F.col("given"),
            "claim_origin": F.lit(""),
            "claim_seq": F.lit(step).cast("long"),
            "claim_seen": F.col("our_bits"),
            "modseq": F.col("merge_modseq"),
        }
    )


def _at(place: Column) -> Column:
    """Return the row of the state at this place, or null."""
    return F.get(F.filter("versions", lambda one: one["place"] == place), F.lit(0))["row"]


def _modseq_after(modseqs: Column, merges: Column) -> Column:
    """Return HIGHESTMODSEQ after `merges` merges: each is one above the states that it joins."""
    others = F.slice(modseqs, F.lit(2), merges)
    return F.aggregate(others, F.get(modseqs, F.lit(0)), lambda found, one: F.greatest(found, one) + 1)
