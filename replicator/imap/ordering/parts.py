"""Sorting and searching in parts, for threads: Python lets no other thread go on while it sorts or searches a list."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, TypeVar

T = TypeVar("T")

SORTED_AT_ONCE = 2000  # values, in a millisecond or two


def in_order(values: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Return the values in the order of their keys. Those with equal keys stay in the order in which they are given.

    Parts are sorted; then the keys of some of their values cut all parts into ranges of keys, and each range is sorted,
    which has as many values as a part has, more or less. A key that many values have is a range of its own: it may have
    more, and is in order.
    """
    parts = [sorted(values[at : at + SORTED_AT_ONCE], key=key) for at in range(0, len(values), SORTED_AT_ONCE)]
    if _ascend(parts, key):
        return [*chain.from_iterable(parts)]  # dates and arrivals mostly ascend with UIDs
    step = max(1, SORTED_AT_ONCE // len(parts))
    samples = sorted(key(value) for part in parts for value in part[::step])
    between = samples[:: max(1, len(samples) // len(parts))]
    bounds = [(least, bisect_left if before < least else bisect_right) for before, least in pairwise(between)]
    cuts = [(0, *(bisect(part, bound, key=key) for bound, bisect in bounds), len(part)) for part in parts]
    ordered: list[T] = []
    for ends in zip(*map(pairwise, cuts), strict=True):
        some = [part[start:end] for part, (start, end) in zip(parts, ends, strict=True) if start < end]
        together = chain.from_iterable(some)
        ordered += together if _ascend(some, key) else sorted(together, key=key)
    return ordered


def lowest(values: Sequence[T], key: Callable[[T], Any]) -> T:
    """Return the first of the values that have the lowest key."""
    parts = (values[at : at + SORTED_AT_ONCE] for at in range(0, len(values), SORTED_AT_ONCE))
    return min((min(part, key=key) for part in parts), key=key)


def _ascend(parts: Iterable[Sequence[T]], key: Callable[[T], Any]) -> bool:
    """Return True if no value in a part has a lower key than those before the part, which are in order."""
    return not any(key(after[0]) < key(before[-1]) for before, after in pairwise(parts))
