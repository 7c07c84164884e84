"""The doors' processes, as the core has them: opened, opened again when they end, and replaced at a reload.

A door that dies takes its connections along, and nothing else: the listening sockets stay open here, so whoever
connects meanwhile waits for the next door that accepts. At a reload, fresh doors take all new connections, with the
certificates and the program that the disk has by then; the doors that they replace *retire*: they serve the
connections that they have, and end with the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Config
from replicator.errors import ConfigError, DataError
from replicator.imap.services import places_of as imap_places_of
from replicator.lmtp import places_of as lmtp_places_of
from replicator.mail_doors import Protocol, addresses_of
from replicator.network.streams import listen
from replicator.runtime.logs.lines import settings_in_force
from replicator.socketmap import places_of as socketmap_places_of
from replicator.workers.both_ends.metrics import DoorMetrics
from replicator.workers.both_ends.sessions import RemoteSessions
from replicator.workers.core.door_process import CoreServices, DoorProcess
from replicator.workers.interface import interface_digest
from replicator.workers.order import Order

RESTART_FIRST_S = 0.1
RESTART_MAX_S = 30.0
STEADY_S = 60.0
"""Seconds after which the end of a door's process counts as the first one."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Door:
    """The processes of one door: the one that accepts connections, and the one before it, as long as that retires.

    `turn`: to start one; `pause_s`: before the next start, if it ends by itself.
    """

    accepting: DoorProcess | None = None
    retiring: DoorProcess | None = None
    turn: trio.Lock = field(default_factory=trio.Lock)
    pause_s: float = RESTART_FIRST_S


class Doors:
    """The processes of the doors, as many as configured. Belongs to the event loop.

    `metrics`: those of `registry`, with what the doors count.
    """

    def __init__(self, config: Config, core: CoreServices, registry: CollectorRegistry) -> None:
        self.metrics = DoorMetrics(registry, has_doors=config.workers.doors > 0)
        self._config = config
        self._core = core
        self._addresses = addresses_of(config)
        self._doors = {number: _Door() for number in range(1, config.workers.doors + 1)} if self._addresses else {}
        self._interface = interface_digest() if self._doors else ""  # now, since an upgrade may change the files
        self._sockets: dict[Protocol, tuple[int, ...]] = {}  # that listen
        self._places = {
            "lmtp": lmtp_places_of(config.limits, core.refusals),
            "imap": imap_places_of(config.limits, core.refusals),
            "socketmap": socketmap_places_of(config.limits, core.refusals),
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the doors open until cancelled; started once all accept. On return, their processes have ended.

        Raises OSError if the address cannot be listened on, or a process cannot be started, and DataError if one ends.
        """
        if not self._doors:
            task_status.started()
            return
        async with AsyncExitStack() as stack, trio.open_nursery() as self._nursery:
            for protocol, address in self._addresses.items():
                listeners = [await stack.enter_async_context(listener) for listener in await listen(address)]
                self._sockets[protocol] = tuple(listener.socket.fileno() for listener in listeners)
            async with trio.open_nursery() as starting:
                for number in self._doors:
                    starting.start_soon(self._open, number)
            task_status.started()

    def problems(self) -> list[str]:
        """Return why no client is served, if no door accepts connections."""
        if any(door.accepting for door in self._doors.values()) or not self._doors:
            return []
        return ["no process of a door runs: see the log"]

    def sessions(self) -> list[RemoteSessions]:
        """Return the sessions of each process, also of those that retire."""
        processes = [process for door in self._doors.values() for process in (door.accepting, door.retiring)]
        return [process.sessions for process in processes if process is not None and process.sessions is not None]

    async def reload(self) -> None:
        """Have fresh doors accept connections, with the certificates as they are now; the present ones retire.

        Those that retire already end with their connections. Raises ConfigError if a fresh door does not open; then
        the present ones stay, and fresh ones that have opened retire. A door that is not open reads the certificates
        when it is opened.
        """
        async with AsyncExitStack() as turns:
            for door in self._doors.values():
                await turns.enter_async_context(door.turn)
            for process in await self._start_fresh([number for number, door in self._doors.items() if door.accepting]):
                self._let_accept(process)
        for retiring in [door.retiring for door in self._doors.values() if door.retiring is not None]:
            await retiring.wait_heard()  # so that whoever connects from now on meets a fresh door

    async def _start_fresh(self, numbers: Sequence[int]) -> list[DoorProcess]:
        """Return a fresh process of each door. Raises ConfigError if one does not open; then the others retire."""
        fresh, problems = list[DoorProcess](), list[str]()

        async def start(number: int) -> None:
            try:
                fresh.append(await self._start(number))
            except (OSError, DataError) as error:
                problems.append(str(error))

        with ExitStack() as failure:
            failure.callback(_retire, fresh)
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(start, number)
            if problems:
                raise ConfigError(f"{problems[0]}; the doors stay as they were")
            failure.pop_all()
        return fresh

    async def _open(self, number: int) -> None:
        """Open a door, if it is not open by now. Raises OSError, DataError."""
        door = self._doors[number]
        async with door.turn:
            if door.accepting is None:
                self._let_accept(await self._start(number))

    async def _start(self, number: int) -> DoorProcess:
        """Return a fresh process of a door, which accepts connections. Raises OSError, DataError."""
        order = Order(number, self._config, settings_in_force(), self._sockets, self._core.users.key)
        process = DoorProcess(order, self._interface, self._core, self._places, self.metrics)
        await self._nursery.start(process.run)
        return process

    def _let_accept(self, process: DoorProcess) -> None:
        """Make a process the one of its door, and have the one before it retire."""
        door = self._doors[process.number]
        before, door.accepting = door.accepting, process
        self.metrics.pids[process.number] = process.pid
        self._nursery.start_soon(self._watch, process)
        if before is None:
            return
        if door.retiring is not None:
            door.retiring.end()
        else:
            self.metrics.retiring += 1
        door.retiring = before
        before.retire()

    async def _watch(self, process: DoorProcess) -> None:
        """Wait for a process's end; if it has not been replaced by then, open its door again."""
        number, began = process.number, trio.current_time()
        door = self._doors[number]
        await process.ended.wait()
        reason = f"the process of door {number} {process.outcome}"
        if door.retiring is process:
            door.retiring = None
            self.metrics.retiring -= 1
        if door.accepting is not process:
            level = logging.INFO if process.ended_in_order else logging.WARNING
            log.log(level, "%s, after another one had replaced it", reason)
            return
        door.accepting = None
        del self.metrics.pids[number]
        if trio.current_time() - began > STEADY_S:
            door.pause_s = RESTART_FIRST_S
        while door.accepting is None:
            log.warning("%s; it starts again in %g s", reason, door.pause_s)
            await trio.sleep(door.pause_s)
            door.pause_s = min(2 * door.pause_s, RESTART_MAX_S)
            self.metrics.restarts += 1
            try:
                await self._open(number)
            except (OSError, DataError) as error:
                reason = str(error)


def _retire(processes: Iterable[DoorProcess]) -> None:
    for process in processes:
        process.retire()
