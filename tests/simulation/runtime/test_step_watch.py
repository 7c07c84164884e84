from __future__ import annotations

import os

import pytest
import trio

from tests.simulation.runtime.scheduler import OWNER, Owner
from tests.simulation.runtime.step_watch import StepTooLongError, steps_limited

LIMIT_S = 0.06


def compute(seconds: float) -> None:
    began = os.times().user
    while os.times().user - began < seconds:
        sum(range(10_000))


async def busy(*, steps: int, owner: Owner | None, limits: int = 5) -> None:
    """Compute for so many limits in all."""
    OWNER.set(owner)
    for _ in range(steps):
        compute(limits * LIMIT_S / steps)
        await trio.lowlevel.checkpoint()


def test_long_step_of_a_node_is_an_error() -> None:
    async def run() -> None:
        with steps_limited(LIMIT_S):
            await busy(steps=1, owner=Owner("dc1"), limits=20)  # a busy machine may join some signals to one

    with pytest.raises(StepTooLongError, match="held the event loop"):
        trio.run(run)


@pytest.mark.parametrize(("steps", "owner"), [(20, Owner("dc1")), (1, None)])
def test_short_steps_and_those_of_tests_may_go_on(steps: int, owner: Owner | None) -> None:
    async def run() -> None:
        with steps_limited(LIMIT_S):
            await busy(steps=steps, owner=owner)

    trio.run(run)
