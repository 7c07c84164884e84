"""A simulated cluster: machines, the network between them, the checks on them, and the way to its end.

Everything follows `Plan`, in virtual time. Named scenarios and random swarms make faults happen, let clients work, and
then `heal` and `verify`.
"""

from __future__ import annotations

import gc
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import NamedTuple

import trio

from protocol.commands import Reply
from protocol.values import Dot
from replicator.config import Config, PeerConfig, WhenShort, default_config
from replicator.mail.view import MailboxView, Message
from replicator.replication import timing
from replicator.replication.writes.requests import ChangeRequest, SaveAllRequest, SaveRequest, dots_of
from replicator.store.db import chain as chains
from tests.replication.cluster import LOOPBACK
from tests.replication.network import Network
from tests.replication.sharing import shared
from tests.simulation.checks import settling
from tests.simulation.checks.bodies import holds_bodies
from tests.simulation.checks.rejoining import RejoinCheck
from tests.simulation.checks.verify import check_wire, verify
from tests.simulation.machine import Machine
from tests.simulation.plan import Plan
from tests.simulation.records.cache import Cache
from tests.simulation.records.history import History
from tests.simulation.records.ledger import Ledger
from tests.simulation.records.story import Story
from tests.simulation.records.watch import Watch
from tests.simulation.runtime.intervals import shortened_intervals
from tests.simulation.runtime.scheduler import deterministic
from tests.store.harness import connection_of

RESTART_S = 5.0  # a node that started less than this before a term may have dropped its mailboxes in its previous run
SLACK_S = 1.0  # tolerance of a deadline: for the disk, and for tasks that the scheduler runs in between


class Standing(NamedTuple):
    """A node's term and component, and the number of disks for which it waits: some nodes may have yet to catch up."""

    term: int
    component: tuple[str, ...]
    reachable: int


class World:
    """The cluster. Use `simulated`. Also the observer of all changes that clients ask for: see `machine.Observer`."""

    def __init__(self, plan: Plan, directory: Path, nursery: trio.Nursery) -> None:
        self.plan = plan
        self.dice = random.Random(f"world {plan.seed}")
        self.story = Story(directory)
        self.history = History(plan.mastership.timeout_s, has_short_log=plan.has_short_log)
        self.ledger = Ledger()
        self.rejoining = RejoinCheck(self._others)
        self.network = Network(nursery, plan.seed)
        self.sids = [f"dc{number + 1}" for number in range(plan.size)]
        self._directory, self._nursery = directory, nursery
        self.machines = {sid: self._machine(sid, sid) for sid in self.sids}
        self.copies: dict[str, Machine] = {}  # by name: copies of nodes, on machines and disks of their own
        self.faults = 0  # number of faults drawn
        self.names: dict[tuple[str, str, str, int], bytes] = {}  # SID, user, folder, UIDVALIDITY -> mailbox id
        self.ids_by_uid: dict[tuple[str, bytes, int], dict[int, str]] = {}  # SID, mailbox, UIDVALIDITY -> EMAILIDs
        self.pairs = list(combinations(self.sids, 2))
        for sid, machine in self.machines.items():
            machine.disk.latency_s = plan.sync_s
            machine.clock.set(self.dice.uniform(*plan.clocks_s))
            self.story.say(f"{sid} is {machine.clock.ahead_s:.1f} s ahead")
        self.mend_roads()

    def __getitem__(self, sid: str) -> Machine:
        return self.machines[sid]

    def _machine(self, sid: str, name: str) -> Machine:
        return Machine(
            sid,
            self.plan.seed,
            directory=self._directory,
            network=self.network,
            nursery=self._nursery,
            story=self.story,
            watch=Watch(name, self.history),
            observer=self,
            config=self._config,
            collects=self.plan.log is not None,
            has_tls=self.plan.deception is not None,
            alters_histories=self.plan.alters_histories,
            name=name,
        )

    def copy(self, sid: str) -> Machine:
        """Return another machine that runs as this node, with a copy of its disk; not started, and without clients."""
        name = f"{sid}-copy{len(self.copies) + 1}"
        machine = self.copies[name] = self._machine(sid, name)
        machine.disk.latency_s = self.plan.sync_s
        machine.copy_disk_of(self[sid])
        return machine

    def replace_by(self, copy: Machine) -> None:
        """Give the node's address to the copy; the disk that the node had is gone. Both must be down."""
        original = self[copy.sid]
        assert not original.is_up
        assert not copy.is_up
        original.watch.disk_replaced({})
        copy.address, self.machines[copy.sid] = original.address, copy

    def _all(self) -> dict[str, Machine]:
        """Return all machines by name."""
        return {**{machine.name: machine for machine in self.machines.values()}, **self.copies}

    def _run(self, origin: str | None) -> Machine | None:
        """Return the machine on which this run of a node goes on."""
        runs = (machine for machine in self._all().values() if machine.life is not None)
        return next((machine for machine in runs if machine.node.store.origin == origin), None)

    def up(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.is_up]

    def down(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if not machine.is_up and not machine.is_starting]

    async def start(self) -> None:
        """Start all nodes that are down."""
        for machine in self.down():
            await machine.start()

    def _config(self, sid: str, data: Path) -> Config:
        plan = self.plan
        priorities = dict(zip(self.sids, plan.priorities, strict=False))
        peers = tuple(PeerConfig(other, LOOPBACK) for other in self.sids if other != sid)
        defaults = default_config(sid, data, peers=peers)
        return replace(
            defaults,
            node=replace(defaults.node, data=data, priority=priorities.get(sid, 0)),
            durability=plan.durability,
            mastership=plan.mastership,
            conflict=plan.conflict,
            log=plan.log or defaults.log,
            content=plan.content,
        )

    # ---- the network

    def mend_roads(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Reset these links, or all, to the plan's values."""
        chosen = self.pairs if pairs is None else list(pairs)
        self.network.mend(*chosen)
        for sender, receiver in (way for pair in chosen for way in permutations(pair)):
            road = self.network.road(sender, receiver)
            road.bytes_per_s, road.jitter_s, road.mutator = None, self.plan.jitter_s, None
            road.delay_s = road.dice.uniform(*self.plan.delay_s)
            road.release()

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.network.cut(*pairs)

    def hold(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Make the links silent in both directions."""
        for one, other in pairs:
            self.network.road(one, other).hold()
            self.network.road(other, one).hold()

    def between(self, group: Iterable[str]) -> list[tuple[str, str]]:
        """Return the links between the group and all other nodes."""
        inside = set(group)
        return [pair for pair in self.pairs if (pair[0] in inside) != (pair[1] in inside)]

    def forget(self, sid: str) -> None:
        """Forget what the node showed: it begins anew."""
        self.names = {key: mailbox_id for key, mailbox_id in self.names.items() if key[0] != sid}
        self.ids_by_uid = {key: ids for key, ids in self.ids_by_uid.items() if key[0] != sid}

    # ---- as the observer of changes

    async def submit(self, machine: Machine, operation: ChangeRequest, submit: Callable[[], Awaitable[Reply]]) -> Reply:
        """See `Observer`. Checks that every wait is bounded, and that OK means as many disks as promised."""
        life, began, frozen_s = machine.life, trio.current_time(), machine.frozen_s
        before = {name: _standing(one) for name, one in self._all().items()}
        try:
            reply = await submit()
        finally:
            if machine.life is life:
                waited_s = trio.current_time() - began - (machine.frozen_s - frozen_s)
                limit_s = timing.REQUEST_TIMEOUT_S + timing.ROUTER_SHOW_TIMEOUT_S + SLACK_S
                assert waited_s <= limit_s, f"a change at {machine.sid} took {waited_s:.1f} s"
        if life is not None and life.is_up:
            for dot in dots_of(reply):
                needed = self._copies_needed(machine, self._run(dot.origin), before)
                self.history.acknowledge(
                    dot,
                    needed,
                    f"at {machine.sid}",
                    began,
                    saves=_saved_by(operation),
                    holds_bodies=self._holds_bodies,
                    showing=self._showing,
                )
        return reply

    def moves(self, source: bytes, destination: bytes, guids: Sequence[bytes], *, anew: bool) -> None:
        """See `Observer`."""
        for guid in guids:
            if anew:
                added = next(one for one in self.history.added.values() if one.guid == guid)
                self.ledger.is_copied_anew(added.content_hash)
            else:
                self.history.moved[guid].add((source, destination))

    def expunges(self, mailbox_id: bytes, messages: Sequence[Message]) -> None:
        """See `Observer`."""
        self.ledger.expunges(mailbox_id, messages)
        self.rejoining.expunges(mailbox_id, messages)

    def disk_replaced(self) -> None:
        """See `Observer`."""
        self.rejoining.disk_lost()

    def begins_anew(self, machine: Machine) -> None:
        """See `Observer`."""
        self.rejoining.begins(machine.sid)

    def selects(self, machine: Machine, view: MailboxView) -> None:
        """See `Observer`."""
        self.rejoining.check(machine.sid, view)

    def _others(self, sid: str) -> list[sqlite3.Connection] | None:
        """Return the databases of all other nodes, or None if not all run, or some write."""
        lives = [machine.life for other, machine in self.machines.items() if other != sid]
        found = [connection_of(life.node.store) for life in lives if life is not None and life.is_up]
        return found if len(found) == len(lives) and not any(one.in_transaction for one in found) else None

    def may_still_number(self, machine: Machine) -> list[str]:
        """See `Observer`. Return nodes of its component that are in an earlier term (design section 5).

        A node that has restarted since has nothing to drop.
        """
        life = machine.life
        assert life is not None
        if self.plan.deception:  # a root may then be told something false; design section 3, promise 5
            return []
        table = life.node.coordinator.mastership.table
        rivals = [self._run(table.origin_of(sid)) for sid in table.component if sid != machine.sid]
        return [
            rival.name
            for rival in rivals
            if rival is not None
            and rival.life is not None
            and rival.life.began < life.term_began - RESTART_S
            and rival.life.node.coordinator.mastership.masters.term < life.term
        ]

    def _showing(self, chain_id: bytes, dot: Dot) -> set[str]:
        """Return the running nodes that show the entry's effect."""
        running = {name: machine for name, machine in self._all().items() if machine.is_up}
        found = {name: chains.load(connection_of(machine.node.store), chain_id) for name, machine in running.items()}
        return {name for name, chain in found.items() if chain is not None and chain.has_seen(dot)}

    def _holds_bodies(self, name: str, content_hashes: list[bytes]) -> bool:
        return not content_hashes or holds_bodies(self._all()[name], content_hashes)

    def _copies_needed(self, machine: Machine, author: Machine | None, before: Mapping[str, Standing | None]) -> int:
        """Return the number of disks that must have an entry which this node acknowledges.

        `before`: all nodes' standings when the change was requested.
        """
        durability = self.plan.durability
        if durability.when_short is WhenShort.REFUSE:
            return durability.copies if not self.plan.deception else 1
        at, by = before.get(machine.name), before.get(author.name) if author else None
        stands = at == _standing(machine) and author is not None and by == _standing(author)
        if at is None or by is None or not stands or at[:2] != by[:2] or self.plan.deception:
            return 1  # the master then may rightly have reached fewer nodes than there are now
        return min(durability.copies, by.reachable)

    # ---- the end

    async def heal(self) -> None:
        """End all faults; return when all nodes are equal, which must not take long."""
        self.story.say("all is healed")
        self.mend_roads()
        for machine in self.machines.values():
            machine.disk.fault = None
            machine.thaw()
        await self.start()
        await self.settle()

    async def settle(self) -> None:
        """Return when all nodes are equal and at rest."""
        began = trio.current_time()
        rest_s = settling.REST_UNANSWERED_S if self.plan.deception else settling.REST_S
        await settling.wait_until_settled(self.up(), self.story, rest_s)
        self.story.say(f"all are equal after {trio.current_time() - began:.2f} s")

    async def verify(self, caches: Iterable[Cache] = ()) -> None:
        """Run `verify.verify`; all nodes run and are equal. Then stop them and check their databases.

        `caches`: of clients, from any node; they must become right at any node by the changes since then.
        """
        await verify(self, caches)
        assert not self.story.defects, "\n".join(self.story.defects)
        for machine in self.up():
            await machine.stop()
        if self.plan.reads_wire:
            check_wire(self)

    async def end(self) -> None:
        """Switch all machines off."""
        for machine in self._all().values():
            if machine.is_up:
                machine.crash()
        with trio.CancelScope(shield=True):
            for machine in self._all().values():
                await machine.unwound()


def _standing(machine: Machine) -> Standing | None:
    if machine.life is None:
        return None
    coordinator = machine.life.node.coordinator
    mastership = coordinator.mastership
    return Standing(mastership.masters.term, mastership.table.component, coordinator.durability.reachable)


@asynccontextmanager
async def simulated(directory: Path, plan: Plan) -> AsyncIterator[World]:
    """Yield a world in which no node runs yet. Needs a run of trio with a mock clock."""
    gc.disable()  # its timing must not influence the story
    try:
        async with trio.open_nursery() as nursery:
            with deterministic(plan.seed), shortened_intervals(), shared():
                world = World(plan, directory, nursery)
                with world.story.including_logs():
                    try:
                        yield world
                    finally:
                        await world.end()
    finally:
        gc.enable()


def _saved_by(operation: ChangeRequest) -> frozenset[bytes]:
    """Return the hashes of the bodies that a request brings."""
    match operation:
        case SaveRequest(stored=stored):
            return frozenset({stored.content_hash})
        case SaveAllRequest(messages=messages):
            return frozenset(message.stored.content_hash for message in messages)
    return frozenset()
