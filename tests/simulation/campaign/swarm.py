"""The run of one seed: first chaos, then the heal, after which all nodes must become equal and keep every promise."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.simulation.campaign.faults import KINDS, Chaos
from tests.simulation.campaign.overrides import with_overrides
from tests.simulation.clients.client import Client
from tests.simulation.clients.reader import Reader
from tests.simulation.plan import Deception, Plan, draw
from tests.simulation.runtime.step_watch import steps_limited
from tests.simulation.world import World, simulated

LIMIT_S = 100.0  # seconds of a core for one seed: a hundred times the average


class SeedFailedError(AssertionError):
    """A broken promise, or the lack of an end; the cause is the error. The message has the story and the seed."""

    def __init__(self, message: str, faults: int = 0) -> None:
        super().__init__(message)
        self.faults = faults  # number of faults that happened


def plan_of(seed: int, overrides: str = "", deception: Deception | None = None) -> Plan:
    """Return the plan that the seed draws, with these overrides; `deception`: see `draw`. Raises ValueError."""
    return with_overrides(draw(seed, tuple(KINDS), deception), overrides)


def run_seed(seed: int, directory: Path) -> str:
    """Return the story of a seed. Raises SeedFailedError."""
    return run(plan_of(seed), directory)


def run(plan: Plan, directory: Path) -> str:
    """Return the story of a plan. Raises SeedFailedError."""
    try:
        with _limited():
            return trio.run(_run_watched, plan, directory, clock=MockClock(autojump_threshold=0))
    except trio.TrioInternalError as error:
        raise SeedFailedError(f"seed {plan.seed} comes to no end") from error


async def _run_watched(plan: Plan, directory: Path) -> str:
    with steps_limited():
        return await run_plan(plan, directory)


@contextmanager
def _limited() -> Iterator[None]:
    """Limit the processor time: a cluster that loops without time passing must not keep the tests from ending."""

    def end(*_: object) -> None:
        raise AssertionError(f"no end after {LIMIT_S:.0f} s of a core")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


async def run_plan(plan: Plan, directory: Path) -> str:
    """Return the story of a plan. Raises SeedFailedError."""
    worlds: list[World] = []
    failure: ExceptionGroup[Exception] | None = None
    try:
        async with simulated(directory, plan) as world:
            worlds.append(world)
            world.story.say(f"seed {plan.seed}: {plan}")
            await _run(world)
    except* Exception as errors:  # noqa: BLE001  raised below: Python 3.11.2 would wrap what is raised here in a group
        failure = errors
    if failure is not None:
        story, faults = (worlds[0].story.text(), worlds[0].faults) if worlds else ("nothing has happened", 0)
        raise SeedFailedError(f"{story}\nseed {plan.seed} breaks a promise, see above", faults) from failure
    return worlds[0].story.text()


async def _run(world: World) -> None:
    await world.start()
    clients = [Client(world, number) for number in range(world.plan.clients)]
    readers = [Reader(world, number) for number in range(world.plan.readers)]
    with trio.move_on_after(world.plan.chaos_s):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Chaos(world, clients, nursery).run)
            for run in (*(client.run for client in clients), *(reader.run for reader in readers)):
                nursery.start_soon(run)
    await world.heal()
    for client in {client.user: client for client in clients}.values():
        for machine in world.up():
            await client.check_save(machine)
    await world.settle()
    if world.plan.undeletes and not (world.plan.has_short_retention or world.history.has_lost_disks):
        await clients[0].check_undelete(world.up()[0], world.up()[-1])
        await world.settle()
    for reader in readers:
        for machine in world.up():
            await reader.check_view(machine)
    await world.verify([cache for client in clients for cache in client.caches])
