"""Many seeds, on all cores; a failure tells what happened. `python -m tests.simulation.soak` runs others."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.simulation.soak import Attempt, attempt

SEEDS = range(100)

Attempts = dict[int, Future[Attempt]]


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield {seed: pool.submit(attempt, seed) for seed in SEEDS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_ends_with_all_nodes_equal_and_every_promise_kept(seed: int, attempts: Attempts) -> None:
    result = attempts[seed].result()
    assert not result.has_failed, result.story
