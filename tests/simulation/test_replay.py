"""A seed tells the same story each time, to the last byte; its last line is a hash of all that happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.swarm import run_seed

ROOT = Path(__file__).parents[2]


def told_elsewhere(seed: int, hash_seed: str) -> str:
    """In another process, whose sets have another order."""
    command = [sys.executable, "-m", "tests.simulation.soak", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, check=True, cwd=ROOT, env=environment, text=True, capture_output=True).stdout


@pytest.mark.parametrize("seed", [3, 12, 10_007])
def test_a_seed_tells_the_same_story_in_other_processes(seed: int, tmp_path: Path) -> None:
    here = run_seed(seed, tmp_path)
    assert len(here.splitlines()) > 50
    for hash_seed in ("1", "2"):
        assert told_elsewhere(seed, hash_seed).splitlines() == here.splitlines()


def test_another_seed_tells_another_story(tmp_path: Path) -> None:
    stories = []
    for seed in (3, 4):
        directory = tmp_path / str(seed)
        directory.mkdir()
        stories.append(run_seed(seed, directory))
    assert stories[0] != stories[1]
