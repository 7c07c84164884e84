"""A seed tells the same story each time, to the last byte; its last line is a hash of all events."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign.swarm import run_seed

ROOT = Path(__file__).parents[2]


def told_by_another_process(seed: int) -> str:
    """Return the story from another process, whose sets have another order."""
    command = [sys.executable, "-m", "tests.simulation.soak", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    return subprocess.run(command, check=True, cwd=ROOT, env=environment, text=True, capture_output=True).stdout


@pytest.mark.long
def test_seed_tells_the_same_story_in_another_process(tmp_path: Path) -> None:
    stories = {}
    for seed in (3, 12):
        directory = tmp_path / str(seed)
        directory.mkdir()
        stories[seed] = run_seed(seed, directory).splitlines()
        assert len(stories[seed]) > 50
        assert told_by_another_process(seed).splitlines() == stories[seed]
    assert stories[3] != stories[12]
