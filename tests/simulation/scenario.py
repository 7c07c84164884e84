"""What named scenarios have in common: a cluster that runs, clients in one line each, and the checks at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from trio.testing import MockClock

from tests.replication.cluster import Node, until
from tests.simulation.machine import Machine
from tests.simulation.plan import Plan
from tests.simulation.world import World, simulated


@asynccontextmanager
async def running(directory: Path, clock: MockClock, plan: Plan | None = None) -> AsyncIterator[World]:
    """A cluster that runs and is at rest. In the end all is healed, and everything is checked that a swarm checks.

    `clock`: of the run of trio that this is in.
    """
    assert clock.autojump_threshold == 0, "time is virtual"
    async with simulated(directory, plan or Plan()) as world:
        await world.start()
        await world.settle()
        yield world
        await world.heal()
        await world.verify()


async def save(machine: Machine, *texts: str) -> list[int]:
    """Into INBOX; their UIDs."""
    return [await machine.call(lambda node, text=text: node.save(text)) for text in texts]  # type: ignore[misc]


async def texts(machine: Machine) -> list[str]:
    """Of INBOX, sorted."""
    return sorted((await machine.call(lambda node: node.texts())).values())


async def reach(world: World, *sids: str, at: Iterable[Machine] | None = None) -> None:
    """Return when these nodes reach each other and nobody else, and agree on their masters. `at`: they, or copies."""
    machines = [world[sid] for sid in sids] if at is None else list(at)

    def settled(node: Node) -> bool:
        mastership = node.coordinator.mastership
        return set(mastership.table.component) == set(sids) and mastership.election.settled

    await until(lambda: all(settled(machine.node) for machine in machines))


async def have(world: World, count: int, sids: Iterable[str]) -> None:
    """Return when these nodes have so many messages in INBOX."""
    for sid in sids:
        view = await world[sid].call(lambda node: node.view())
        await until(lambda view=view: len(view.messages) == count)  # type: ignore[misc]
