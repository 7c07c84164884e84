"""Many seeds; a failure names its seed and tells what happened. `python -m tests.simulation.soak` runs others."""

from pathlib import Path

import pytest

from tests.simulation.swarm import run_seed

SEEDS = range(100)


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_ends_with_all_nodes_equal_and_every_promise_kept(seed: int, tmp_path: Path) -> None:
    run_seed(seed, tmp_path)
