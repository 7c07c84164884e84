"""Sorting and searching in parts: what comes of it, and how many values are looked at at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.ordering import parts
from replicator.imap.ordering.parts import SORTED_AT_ONCE, in_order, lowest


@given(st.lists(st.integers(0, 9) | st.integers(), max_size=60), st.integers(1, 9))
def test_order_is_that_of_a_stable_sort(keys: list[int], at_once: int) -> None:
    places = range(len(keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "SORTED_AT_ONCE", at_once)
        assert in_order(places, keys.__getitem__) == sorted(places, key=keys.__getitem__)


@pytest.mark.parametrize("often", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_few_values_are_sorted_at_once_however_often_one_occurs(monkeypatch: pytest.MonkeyPatch, often: float) -> None:
    """A mailbox may have ten thousands of messages of one sender among others."""
    most = 0

    def counted(values: Iterable[int], key: Callable[[int], int] | None = None) -> list[int]:
        nonlocal most
        values = [*values]
        most = max(most, len(values))
        return sorted(values, key=key)

    draw = random.Random(1)
    keys = [500 if draw.random() < often else draw.randrange(10**6) for _ in range(20 * SORTED_AT_ONCE)]
    monkeypatch.setattr(parts, "sorted", counted, raising=False)
    assert in_order(range(len(keys)), keys.__getitem__) == sorted(range(len(keys)), key=keys.__getitem__)
    assert most <= 3 * SORTED_AT_ONCE


@given(st.lists(st.integers(0, 9) | st.integers(), min_size=1, max_size=60), st.integers(1, 9))
def test_lowest_is_the_first_of_the_lowest(keys: list[int], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "SORTED_AT_ONCE", at_once)
        assert lowest(range(len(keys)), keys.__getitem__) == min(range(len(keys)), key=keys.__getitem__)


def test_few_values_are_searched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0

    def counted(values: Iterable[int], key: Callable[[int], int]) -> int:
        nonlocal most
        values = [*values]
        most = max(most, len(values))
        return min(values, key=key)

    monkeypatch.setattr(parts, "min", counted, raising=False)
    keys = [*range(100 * SORTED_AT_ONCE, 0, -1)]
    assert lowest(range(len(keys)), keys.__getitem__) == len(keys) - 1
    assert most == SORTED_AT_ONCE
