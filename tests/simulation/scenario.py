"""Helpers of named scenarios: a running cluster, what clients do in a line each, and the checks at the end."""

from __future__ import annotations

import random
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
    """Yield a running cluster at rest. Afterwards everything is healed, and checked as in a swarm.

    `clock`: of the enclosing run of trio.
    """
    assert clock.autojump_threshold == 0, "time is virtual"
    async with simulated(directory, plan or Plan()) as world:
        await world.start()
        await world.settle()
        yield world
        await world.heal()
        await world.verify()


async def save(machine: Machine, *bodies: str) -> list[int]:
    """Save mails with these bodies into INBOX and return their UIDs."""
    return [await machine.call(lambda node, body=body: node.save(body)) for body in bodies]  # type: ignore[misc]


def large_body(number: int) -> str:
    """Return a body of 40,000 octets, which compression makes half as long at most."""
    return random.Random(number).randbytes(20_000).hex()


async def bodies(machine: Machine) -> list[str]:
    """Return the bodies of all mails in INBOX, sorted."""
    return sorted((await machine.call(lambda node: node.bodies())).values())


async def wait_for_component(world: World, *sids: str, at: Iterable[Machine] | None = None) -> None:
    """Wait until these nodes are a component with a settled term. `at`: the machines that must say so, or copies."""
    machines = [world[sid] for sid in sids] if at is None else list(at)

    def settled(node: Node) -> bool:
        elections = node.coordinator.elections
        return set(elections.table.component) == set(sids) and elections.machine.settled

    await until(lambda: all(settled(machine.node) for machine in machines))


async def wait_for_mails(world: World, count: int, sids: Iterable[str]) -> None:
    """Wait until these nodes have `count` messages in INBOX."""
    for sid in sids:
        view = await world[sid].call(lambda node: node.view())
        await until(lambda view=view: len(view.messages) == count)  # type: ignore[misc]
