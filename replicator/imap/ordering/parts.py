"""Sorting in parts, for threads: no other thread goes on while Python sorts a list, however long that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import merge
from typing import Any, TypeVar

T = TypeVar("T")

SORTED_AT_ONCE = 500  # values, in a millisecond or two


def in_order(values: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Return the values in the order of their keys. No two keys may be equal."""
    parts = (values[start : start + SORTED_AT_ONCE] for start in range(0, len(values), SORTED_AT_ONCE))
    ordered = [sorted(part, key=key) for part in parts]
    return ordered[0] if len(ordered) == 1 else [*merge(*ordered, key=key)]
