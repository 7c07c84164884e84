"""Many seeds; a failure prints its story. `python -m tests.simulation.soak` runs others."""

import pytest

from tests.effort import examples
from tests.simulation.soak import attempt

SEEDS = range(examples(2, 12))


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_ends_with_all_nodes_equal_and_every_promise_kept(seed: int) -> None:
    result = attempt(seed)
    assert not result.has_failed, result.story
