"""Sets of a mailbox's states as bits of a number: bit n is the state of the n-th node."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def bit(place: Column) -> Column:
    """Return the bit of the state at a place."""
    return F.call_function("shiftleft", F.lit(1).cast("long"), place)


def bits_of(places: Column) -> Column:
    """Return the bits of the states at these places."""
    return F.aggregate(places, F.lit(0).cast("long"), lambda found, place: found.bitwiseOR(bit(place)))


def has(bits: Column, place: Column) -> Column:
    """Return True if the state at the place is in the set."""
    return bits.bitwiseAND(bit(place)) != 0
