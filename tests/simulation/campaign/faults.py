"""Faults of the network, of nodes and of disks: a function for each kind, in the table `KINDS`.

Lasting faults end by themselves after a while, or at the heal.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path

import trio

from replicator.errors import MailError
from replicator.store.db import queries
from replicator.store.db.transaction import Transaction
from resync.entry import DIGEST_BYTES
from tests.lying import Liar
from tests.mutating import Flipper, Mutator
from tests.simulation.clients.client import Client
from tests.simulation.machine import Machine
from tests.simulation.plan import CLOCK_WINDOW_S, Plan
from tests.simulation.runtime.disk import DiskFault
from tests.simulation.world import World

MAX_PAUSE_S = 150.0
MAX_DOWN_S = 15.0
MAX_CUT_S = 20.0
DRIFT_S = 10.0  # of a clock, at most, in one run
RESTORED = 0.9  # share of lost disks that are replaced by a copy, if there is one


class Chaos:
    """Faults drawn from the world's seed, one after the other. Lasting faults run in `nursery`."""

    def __init__(self, world: World, clients: list[Client], nursery: trio.Nursery) -> None:
        self.world = world
        self.dice = self._dice_of("none")  # of the current fault
        self.nursery = nursery
        self.disks_lost = 0
        self.copies: dict[str, list[Path]] = {sid: [] for sid in world.sids}
        self._clients = clients

    async def run(self) -> None:
        """Make one fault after the other until cancelled."""
        self.nursery.start_soon(self._back_up)
        plan = self.world.plan
        weights = {name: weight for name, weight in plan.weights.items() if weight}
        while weights:
            number = self.world.faults
            dice = self._dice_of(number)
            await trio.sleep(dice.uniform(0.1, plan.fault_pause_s))
            name = dice.choices(list(weights), list(weights.values()))[0]
            self.world.faults += 1
            self.dice = dice
            if plan.faults is None or number in plan.faults:
                await ALL_KINDS[name](self)

    def _dice_of(self, fault: object) -> random.Random:
        """Return a generator of the fault's own, so that leaving one fault out does not change the others."""
        return random.Random(f"fault {fault} {self.world.plan.seed}")

    async def _back_up(self) -> None:
        """Copy each disk once, early, so that a restored copy lacks something."""
        dice = self._dice_of("copies")
        for machine in self.world.machines.values():
            await trio.sleep(dice.uniform(0, self.world.plan.chaos_s / 4 / len(self.world.machines)))
            self.copy_disk(machine)

    def copy_disk(self, machine: Machine) -> None:
        if not machine.is_starting and (copy := machine.disk.copy()) is not None:
            self.say(f"a copy is taken of the disk of {machine.sid}")
            self.copies[machine.sid].append(copy)

    def say(self, what: str) -> None:
        self.world.story.say(what)

    def some_group(self) -> list[str]:
        """Return at least one node, and not all."""
        sids = self.world.sids
        return sorted(self.dice.sample(sids, self.dice.randint(1, len(sids) - 1)))

    def some_pair(self) -> tuple[str, str]:
        return self.dice.choice(self.world.pairs)

    def a_node(self) -> Machine | None:
        """Return a node that runs and is not frozen, or None; mostly only if more than half of the nodes run."""
        running = [machine for machine in self.world.up() if machine.life and not machine.life.owner.frozen]
        are_enough = 2 * len(running) > len(self.world.sids) or self.dice.random() < 0.2
        return self.dice.choice(running) if running and are_enough else None

    def mend_later(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Mend only these links later, so that separated nodes meet one after the other."""
        mended = list(pairs)

        async def mend() -> None:
            self.say("all roads are mended" if mended == self.world.pairs else f"{mended} are mended")
            self.world.mend_roads(mended)

        self.later(MAX_CUT_S, mend)

    def later(self, at_most_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work after a while, mostly a short one."""
        delay_s = min(at_most_s, self.dice.expovariate(4 / at_most_s))

        async def wait() -> None:
            await trio.sleep(delay_s)
            await work()

        self.nursery.start_soon(wait)

    def start_later(self, machine: Machine) -> None:
        async def start() -> None:
            if not machine.is_up and not machine.is_starting:
                await machine.start()

        self.later(MAX_DOWN_S, start)

    def replace_disk(self, machine: Machine, copy: Path | None) -> None:
        """Replace the disk of a node that is down. Its clients begin anew there, as the node does."""
        machine.restore(copy)
        self.world.forget(machine.sid)
        for client in self._clients:
            client.forget(machine.sid)


Fault = Callable[[Chaos], Awaitable[None]]


# ---- the network


async def cut(chaos: Chaos) -> None:
    pair = chaos.some_pair()
    chaos.say(f"cut {pair}")
    chaos.world.cut([pair])
    chaos.mend_later([pair])


async def part(chaos: Chaos) -> None:
    group = chaos.some_group()
    pairs = chaos.world.between(group)
    chaos.say(f"part {group} from the others")
    chaos.world.cut(pairs)
    chaos.mend_later(pairs)


async def part_silently(chaos: Chaos) -> None:
    group = chaos.some_group()
    pairs = chaos.world.between(group)
    chaos.say(f"silence between {group} and the others")
    chaos.world.hold(pairs)
    chaos.mend_later(pairs)


async def part_all(chaos: Chaos) -> None:
    """Separate all nodes. They meet again in pairs, each at its own time."""
    chaos.say("all are apart")
    chaos.world.cut(chaos.world.pairs)
    for pair in chaos.world.pairs:
        chaos.mend_later([pair])


async def part_into_a_line(chaos: Chaos) -> None:
    order = chaos.dice.sample(chaos.world.sids, len(chaos.world.sids))
    neighbours = {frozenset(pair) for pair in pairwise(order)}
    pairs = [pair for pair in chaos.world.pairs if frozenset(pair) not in neighbours]
    chaos.say(f"only the line {order} is left")
    chaos.world.cut(pairs)
    chaos.mend_later(pairs)


async def silence_one_way(chaos: Chaos) -> None:
    sender, receiver = chaos.dice.sample(chaos.world.sids, 2)
    chaos.say(f"silence from {sender} to {receiver}")
    chaos.world.network.road(sender, receiver).hold()
    chaos.mend_later([(sender, receiver)])


async def flap(chaos: Chaos) -> None:
    pair, pauses = chaos.some_pair(), [chaos.dice.uniform(0.05, 3) for _ in range(chaos.dice.randint(2, 8))]
    chaos.say(f"flap {pair}")

    async def go() -> None:
        for pause in pauses:
            chaos.world.cut([pair])
            await trio.sleep(pause)
            chaos.world.network.mend(pair)
            await trio.sleep(pause / 2)

    chaos.nursery.start_soon(go)


async def slow(chaos: Chaos) -> None:
    sender, receiver = chaos.dice.sample(chaos.world.sids, 2)
    rate = chaos.dice.choice((2_000, 20_000, 200_000))
    chaos.say(f"{rate} bytes a second from {sender} to {receiver}")
    chaos.world.network.road(sender, receiver).bytes_per_s = rate
    chaos.mend_later([(sender, receiver)])


async def delay(chaos: Chaos) -> None:
    sender, receiver = chaos.dice.sample(chaos.world.sids, 2)
    delay_s = chaos.dice.choice((0.05, 0.3, 1.0))
    chaos.say(f"{delay_s} s from {sender} to {receiver}")
    chaos.world.network.road(sender, receiver).delay_s = delay_s
    chaos.mend_later([(sender, receiver)])


async def mutate(chaos: Chaos) -> None:
    """Change single fields of commands in transit, in both directions of some links."""
    _spoil(chaos, Mutator, "one command in {} is changed on {}")


async def flip(chaos: Chaos) -> None:
    """Flip bits of commands in transit, in both directions of some links."""
    _spoil(chaos, Flipper, "one command in {} has flipped bits on {}")


def _spoil(chaos: Chaos, kind: type[Mutator], what: str) -> None:
    pairs = chaos.dice.sample(chaos.world.pairs, chaos.dice.randint(1, min(3, len(chaos.world.pairs))))
    rate = chaos.dice.choice((0.01, 0.05, 0.2))
    chaos.say(what.format(round(1 / rate), pairs))
    for sender, receiver in (way for pair in pairs for way in permutations(pair)):
        chaos.world.network.road(sender, receiver).mutator = kind(chaos.dice, rate)
    chaos.mend_later(pairs)


async def lie(chaos: Chaos) -> None:
    """Let a node lie to some of the others, or to all."""
    liar = chaos.dice.choice(chaos.world.sids)
    others = [sid for sid in chaos.world.sids if sid != liar]
    deceived = sorted(chaos.dice.sample(others, chaos.dice.randint(1, len(others))))
    rate = chaos.dice.choice((0.05, 0.1, 0.3))
    chaos.say(f"{liar} lies in one command in {1 / rate:.0f} to {deceived}")
    for other in deceived:
        chaos.world.network.road(liar, other).mutator = Liar(chaos.dice, rate, chaos.say)
    chaos.mend_later(
        [(sid, other) for sid, other in chaos.world.pairs if liar in {sid, other} and {sid, other} & {*deceived}]
    )


# ---- nodes


async def stop(chaos: Chaos) -> None:
    if (machine := chaos.a_node()) is not None:
        with trio.CancelScope(shield=True):
            await machine.stop()
        chaos.start_later(machine)


async def crash(chaos: Chaos) -> None:
    if (machine := chaos.a_node()) is not None:
        machine.crash(silently=chaos.dice.random() < 0.4)
        chaos.start_later(machine)


async def stand_still(chaos: Chaos) -> None:
    if (machine := chaos.a_node()) is not None:
        machine.freeze()
        life = machine.life

        async def end() -> None:
            if machine.life is life:
                machine.thaw()

        chaos.later(chaos.dice.choice((4, 8, 8, 30, MAX_PAUSE_S)), end)


async def turn_clock(chaos: Chaos) -> None:
    """Set a clock, mostly as far off as it may be without separating the nodes: it must have no other effect."""
    low, high = _window(chaos.world.plan)
    machine = chaos.dice.choice(list(chaos.world.machines.values()))
    ahead_s = chaos.dice.choice((low, high, chaos.dice.uniform(low, high)))
    drift = chaos.dice.choice((0.0, 0.01, -0.01))
    chaos.say(f"the clock of {machine.sid} is {ahead_s:.1f} s ahead, and gains {drift} s a second")
    machine.clock.set(ahead_s, drift)


def _window(plan: Plan) -> tuple[float, float]:
    """Return the range in which all clocks may lie at once, however they drift: see `plan.CLOCK_WINDOW_S`."""
    low, high = plan.clocks_s
    if high - low < CLOCK_WINDOW_S:
        low, high = -CLOCK_WINDOW_S / 2, CLOCK_WINDOW_S / 2
    return low + DRIFT_S, high - DRIFT_S


# ---- disks


async def break_disk(chaos: Chaos) -> None:
    if (machine := chaos.a_node()) is not None and machine.disk.fault is None:
        machine.disk.fault = chaos.dice.choice(list(DiskFault))
        chaos.say(f"the disk of {machine.sid}: {machine.disk.fault.value[0]}")

        async def end() -> None:
            machine.disk.fault = None
            chaos.say(f"the disk of {machine.sid} is well")

        chaos.later(20, end)


async def copy_disk(chaos: Chaos) -> None:
    chaos.copy_disk(chaos.dice.choice(list(chaos.world.machines.values())))


async def lose_disk(chaos: Chaos) -> None:
    """Lose a disk, but never more disks than acknowledged mail must survive; `History` keeps count of that mail."""
    machine = chaos.a_node()
    if machine is None or (not chaos.copies[machine.sid] and chaos.dice.random() < RESTORED):
        return
    if chaos.disks_lost < chaos.world.plan.durability.copies - 1:
        chaos.disks_lost += 1
        machine.crash(silently=chaos.dice.random() < 0.5)
        copies = chaos.copies[machine.sid]
        is_restored = copies and chaos.dice.random() < RESTORED
        chaos.replace_disk(machine, chaos.dice.choice(copies) if is_restored else None)
        chaos.start_later(machine)


async def alter_histories(chaos: Chaos) -> None:
    """Alter the histories of some heads at a node, as if its disk did, and let it crash soon afterwards.

    After the crash there is an election. The nodes compare themselves then, at the latest.
    """
    machine, dice = chaos.a_node(), chaos.dice
    if machine is None:
        return
    life = machine.life
    chaos.say(f"the disk of {machine.sid} alters histories")
    with trio.CancelScope(shield=True):
        with suppress(MailError), trio.move_on_after(1):
            await machine.node.store.write(partial(_alter_histories, dice=dice))
        await trio.sleep(dice.uniform(0, 3))
        if machine.life is life:
            machine.crash(silently=dice.random() < 0.4)
    chaos.start_later(machine)


def _alter_histories(tx: Transaction, dice: random.Random) -> None:
    shown = [chain for chain in queries.chains_of(tx.connection, None) if chain.head is not None]
    for one in dice.sample(shown, dice.randint(0, len(shown))):
        tx.chain_to_change(one.id, one.user, one.uidvalidity).history = dice.randbytes(DIGEST_BYTES)


KINDS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        cut, part, part_silently, part_all, part_into_a_line, silence_one_way, flap, slow, delay,
        stop, crash, stand_still, turn_clock, break_disk, copy_disk, lose_disk,
    )
}  # fmt: skip

ALL_KINDS: Mapping[str, Fault] = {**KINDS, **{fault.__name__: fault for fault in (mutate, flip, lie, alter_histories)}}
"""`KINDS` and those that only some seeds have: see `Plan.deception` and `Plan.alters_histories`."""
