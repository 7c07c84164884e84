"""Numbers of examples and cases that tests try: few in `make test`, which takes minutes, and all in CI."""

import os
from collections.abc import Iterable
from typing import TypeVar

IN_CI = os.environ.get("TESTS_IN_CI") == "1"
"""Set by .ci/run."""

Case = TypeVar("Case")


def examples(quick: int, whole: int) -> int:
    """Return how many examples a test tries: `quick`, or in CI `whole`."""
    return whole if IN_CI else quick


def spread(count: int, cases: Iterable[Case]) -> list[Case]:
    """Return the cases of which a test tries `count` that are spread evenly over all, or in CI all."""
    every = list(cases)
    return every if IN_CI or count >= len(every) else [every[len(every) * number // count] for number in range(count)]


def first(count: int, cases: Iterable[Case]) -> list[Case]:
    """Return the cases that a test tries: the first ones, or in CI all."""
    return list(cases)[: None if IN_CI else count]
