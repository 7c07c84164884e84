"""Sorting in parts, for threads: no other thread goes on while Python sorts a list, however long that takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any, TypeVar

T = TypeVar("T")

SORTED_AT_ONCE = 2000  # values, in a millisecond or two


def in_order(values: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Return the values in the order of their keys. Those with equal keys stay in the order in which they are given.

    Parts are sorted; then the keys of some of their values cut all parts into ranges of keys, and each range is sorted,
    which has as many values as a part has, more or less. A range of one key alone may have more, and is in order.
    """
    parts = [sorted(values[at : at + SORTED_AT_ONCE], key=key) for at in range(0, len(values), SORTED_AT_ONCE)]
    if not any(key(after[0]) < key(before[-1]) for before, after in pairwise(parts)):
        return [*chain.from_iterable(parts)]  # dates and arrivals mostly ascend with UIDs
    step = max(1, SORTED_AT_ONCE // len(parts))
    samples = sorted(key(value) for part in parts for value in part[::step])
    between = samples[:: max(1, len(samples) // len(parts))][1:]
    cuts = [(0, *(bisect_left(part, least, key=key) for least in between), len(part)) for part in parts]
    ordered: list[T] = []
    for ends in zip(*map(pairwise, cuts), strict=True):
        some = [value for part, (start, end) in zip(parts, ends, strict=True) for value in part[start:end]]
        ordered += sorted(some, key=key)
    return ordered
