"""Contexts as expressions: maps of origins to the highest sequence numbers seen (design section 2)."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.schemas import CONTEXT


def empty() -> Column:
    """Return the context of a node that has seen nothing."""
    return F.from_json(F.lit("{}"), CONTEXT)


def has_seen(context: Column, origin: Column, seq: Column) -> Column:
    """Return True if the entry is part of the history. Restates `resync.state.MailboxState.has_seen`."""
    return F.coalesce(F.try_element_at(context, origin), F.lit(0)) >= seq


def covers(context: Column, other: Column) -> Column:
    """Return True if `context` includes everything that `other` includes. Restates `protocol.values.covers`."""
    # no look-up per entry, which would search the other map each time: there may be thousands of origins
    lacks = F.map_zip_with(context, other, lambda _, has, wanted: wanted > F.coalesce(has, F.lit(0)))
    return ~F.exists(F.map_values(lacks), lambda one: F.coalesce(one, F.lit(False)))


def joined(ours: Column, theirs: Column) -> Column:
    """Return the context of a state that has seen what two others have. Restates `resync.state.joined`."""
    return F.map_zip_with(ours, theirs, lambda _, one, other: F.greatest(one, other))
