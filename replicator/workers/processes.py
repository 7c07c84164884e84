"""The doors' processes, as the core has them: started, told when certificates change, and started again when they end.

A door that dies takes its connections along, and nothing else: the listening sockets stay open here, so whoever
connects meanwhile waits for the next door that accepts.
"""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Address, Config
from replicator.errors import ConfigError, DataError, UnavailableError
from replicator.imap.services import places_of as imap_places_of
from replicator.lmtp import places_of as lmtp_places_of
from replicator.network.streams import listen
from replicator.oauth import AccessTokens
from replicator.runtime.metrics import RefusalMetrics
from replicator.runtime.own_program import command_of, environment
from replicator.runtime.places import Places
from replicator.users import UserDirectory
from replicator.workers.channel import Channel, DefectError
from replicator.workers.door import Order, Protocol
from replicator.workers.mail_calls import CoreMail, MailCalls
from replicator.workers.mail_feed import Published
from replicator.workers.remote_metrics import DoorMetrics
from replicator.workers.remote_places import PlaceCalls
from replicator.workers.remote_users import UserCalls

COMMAND = command_of("replicator.workers")

START_S = 120.0
"""Seconds until a door must accept. It takes one on an idle machine."""

END_S = 5.0
"""Seconds that a door has to end once its connection to the core has ended."""

RELOAD_S = 30.0
"""Seconds for reading certificates."""

PING_EVERY_S, ANSWER_S = 5.0, 10.0
"""Seconds between two pings of a door, and for an answer."""

UNANSWERED_MAX = 3
"""Unanswered pings in a row that mean a door that hangs. During a single one, the core itself may have paused."""

RESTART_FIRST_S = 0.1
RESTART_MAX_S = 30.0
STEADY_S = 60.0
"""Seconds after which the end of a door's process counts as the first one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoreServices:
    """Services of the core for its doors. `tokens`: if there is a provider of them."""

    mail: CoreMail
    store: Published
    users: UserDirectory
    tokens: AccessTokens | None
    refusals: RefusalMetrics


class Doors:
    """The processes of the doors, as many as configured. Belongs to the event loop.

    `metrics`: those of `registry`, with what the doors count.
    """

    def __init__(self, config: Config, core: CoreServices, registry: CollectorRegistry) -> None:
        self.metrics = DoorMetrics(registry)
        self._config = config
        self._core = core
        self._addresses = _addresses_of(config)
        self._numbers = range(1, config.workers.doors + 1) if self._addresses else range(0)
        self._sockets: dict[Protocol, tuple[int, ...]] = {}  # that listen
        self._places: dict[str, Places] = {
            "lmtp": lmtp_places_of(config.limits, core.refusals),
            "imap": imap_places_of(config.limits, core.refusals),
        }
        self._open: dict[int, Channel] = {}  # doors that accept, by number

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the doors open until cancelled; started once all accept. On return, their processes have ended.

        Raises OSError if the address cannot be listened on, or a process cannot be started, and DataError if one ends.
        """
        if not self._numbers:
            task_status.started()
            return
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for protocol, address in self._addresses.items():
                listeners = [await stack.enter_async_context(listener) for listener in await listen(address)]
                self._sockets[protocol] = tuple(listener.socket.fileno() for listener in listeners)
            async with trio.open_nursery() as starting:
                for number in self._numbers:
                    starting.start_soon(nursery.start, self._keep_open, number)
            task_status.started()

    def problems(self) -> list[str]:
        """Return why no client is served, if no door is open."""
        return ["no process of a door runs: see the log"] if self._numbers and not self._open else []

    async def reload(self) -> None:
        """Have all doors read their certificates again. Raises ConfigError if one cannot use them."""
        for number, channel in [*self._open.items()]:
            try:
                with trio.fail_after(RELOAD_S):
                    problem = await channel.call("reload")
            except UnavailableError:
                continue  # it has ended, and the next one reads them when it starts
            except trio.TooSlowError:
                problem = f"it has not answered within {RELOAD_S:g} s"
            except DefectError as error:
                problem = str(error)
            if problem is not None:
                raise ConfigError(f"door {number}: {problem}")

    async def _keep_open(self, number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        delay, is_first, began = RESTART_FIRST_S, True, trio.current_time()

        def started() -> None:
            nonlocal is_first
            if is_first:
                task_status.started()
            is_first = False

        while True:
            try:
                reason = await self._run_once(number, started)
            except OSError as error:
                if is_first:
                    raise
                reason = f"could not start: {error}"
            if is_first:
                raise DataError(f"the process of door {number} {reason}; the log says more")
            if trio.current_time() - began > STEADY_S:
                delay = RESTART_FIRST_S
            log.warning("the process of door %d %s; it starts again in %g s", number, reason, delay)
            await trio.sleep(delay)
            self.metrics.restarts += 1
            delay, began = min(2 * delay, RESTART_MAX_S), trio.current_time()

    async def _run_once(self, number: int, started: Callable[[], None]) -> str:
        """Run a door's process until it ends. Return how it ended. Raises OSError if it cannot be started."""
        ours, theirs = socket.socketpair()
        core = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with core:
            with theirs:
                process = await trio.lowlevel.open_process(
                    COMMAND,
                    stdin=theirs,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[number for numbers in self._sockets.values() for number in numbers],
                    env=environment(),
                    start_new_session=True,
                )
            channel = Channel(core)
            mail = MailCalls(channel, self._core.mail, self._core.store)
            UserCalls(channel, self._core.users, self._core.tokens)
            places = [PlaceCalls(channel, protocol, all_places) for protocol, all_places in self._places.items()]
            channel.quick_calls["metrics"] = partial(self.metrics.add, number)
            try:
                self.metrics.pids[number] = process.pid
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(mail.run)
                    await self._serve(number, channel, started)
                    nursery.cancel_scope.cancel()
            finally:
                self._open.pop(number, None)
                self.metrics.pids.pop(number, None)
                self.metrics.forget(number)
                for of_protocol in places:
                    of_protocol.close()
                with trio.CancelScope(shield=True):
                    await mail.close()
                    await _end(process)
        return f"has ended ({_how(process.returncode)})"

    async def _serve(self, number: int, channel: Channel, started: Callable[[], None]) -> None:
        """Answer a door until its connection ends."""
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        order = Order(number, self._config, level, self._sockets, self._core.users.key)
        async with trio.open_nursery() as nursery:

            async def open_and_watch() -> None:
                try:
                    with trio.fail_after(START_S):
                        problem = await channel.call("begin", order.packed())
                except (UnavailableError, DefectError):  # the log tells why
                    problem = "it failed"
                except trio.TooSlowError:
                    problem = f"it took longer than {START_S:g} s"
                if problem is not None:
                    log.error("door %d cannot be opened: %s", number, problem)
                    nursery.cancel_scope.cancel()
                    return
                self._open[number] = channel
                started()
                with suppress(UnavailableError):  # it has ended
                    await _until_silent(channel)
                    log.error("door %d has left %d pings unanswered: its process is ended", number, UNANSWERED_MAX)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(open_and_watch)
            await channel.run()
            nursery.cancel_scope.cancel()


def _addresses_of(config: Config) -> dict[Protocol, Address]:
    """Return where the doors listen, by what they speak there."""
    found: dict[Protocol, Address | None] = {
        "lmtp": config.listen.lmtp,
        "imap": config.listen.imap,
        "imaps": config.listen.imaps,
    }
    return {protocol: address for protocol, address in found.items() if address is not None}


async def _until_silent(channel: Channel) -> None:
    """Return once the door answers no more. Raises UnavailableError if its connection ends."""
    unanswered = 0
    while unanswered < UNANSWERED_MAX:
        await trio.sleep(PING_EVERY_S)
        with trio.move_on_after(ANSWER_S) as patience:
            await channel.call("ping")
        unanswered = unanswered + 1 if patience.cancelled_caught else 0


async def _end(process: trio.Process) -> None:
    """Wait for the process to end by itself, then kill it."""
    with trio.move_on_after(END_S):
        await process.wait()
    process.kill()
    await process.wait()


def _how(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"signal {-returncode}"
    return f"exit code {returncode}"
