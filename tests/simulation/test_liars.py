"""Nodes that lie, one lie at a time. Each scenario ends with all checks of a swarm: see `scenario.running`."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Dropped, Root
from tests.lying import Lie
from tests.replication.cluster import HEARTBEAT_S, until
from tests.simulation.plan import Deception, Plan
from tests.simulation.scenario import running, save
from tests.simulation.world import World

THREE = ("dc1", "dc2", "dc3")
DECEIVED = Plan(deception=Deception.LIARS)
FAR = (1 << 31) + 721  # above every number up to which nodes count
BELIEVED_S = 2 * HEARTBEAT_S + 1


def tell(world: World, sender: str, receiver: str, lie: Lie) -> Lie:
    world.network.road(sender, receiver).mutator = lie
    return lie


def terms(world: World) -> set[int]:
    return {world[sid].node.coordinator.elections.machine.term for sid in THREE}


@pytest.mark.parametrize(("sender", "kind"), [("dc1", Root), ("dc2", Dropped)], ids=["by the root", "to the root"])
async def test_far_term_that_is_told_once_is_not_adopted(
    tmp_path: Path, autojump_clock: MockClock, sender: str, kind: type
) -> None:
    async with running(tmp_path, autojump_clock, DECEIVED) as world:
        before = terms(world)
        lie = tell(world, sender, "dc2" if sender == "dc1" else "dc1", Lie(kind, lambda said: replace(said, term=FAR)))
        await until(lambda: bool(lie.told))
        await trio.sleep(5 * HEARTBEAT_S)
        assert terms(world) == before
        assert await save(world["dc3"], "x") == [1]


async def test_far_term_that_a_node_insists_on_parts_no_nodes(tmp_path: Path, autojump_clock: MockClock) -> None:
    """All nodes go to the far term together, and mail is numbered there."""
    async with running(tmp_path, autojump_clock, DECEIVED) as world:
        lie = Lie(Dropped, lambda said: replace(said, term=FAR), trio.current_time() + BELIEVED_S)
        tell(world, "dc2", "dc1", lie)
        await until(lambda: min(terms(world)) > FAR)
        await world.settle()
        assert await save(world["dc3"], "x") == [1]
