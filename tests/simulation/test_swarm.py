"""Many seeds; a failure names its seed and tells what happened. SEEDS=n and FIRST_SEED=n run others."""

import os
import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.simulation.world import World

FIRST = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEEDS", "25")))


def schedule_by(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that could run at the same time run in an order that follows from the seed."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    monkeypatch.setattr(trio._core._run, "_r", random.Random(seed))


@pytest.mark.parametrize("seed", SEEDS)
async def test_chaos_ends_with_all_nodes_equal_and_no_reported_mail_lost(
    seed: int, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_by(seed, monkeypatch)
    world = World(seed, tmp_path, autojump_clock)
    try:
        await world.run()
    except BaseException:
        print(*(f"{at:9.3f} {what}" for at, what in world.ledger.trace), sep="\n")  # noqa: T201 - the story, for whoever looks into it
        raise


async def test_a_seed_tells_the_same_story_twice(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = []
    for life in ("first", "second"):
        schedule_by(7, monkeypatch)
        began = trio.current_time()
        directory = tmp_path / life
        directory.mkdir()
        world = World(7, directory, autojump_clock)
        await world.run()
        stories.append([(round(at - began, 6), what) for at, what in world.ledger.trace])
    assert stories[0] == stories[1]
