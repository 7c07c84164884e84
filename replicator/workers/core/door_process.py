"""A door's process, as the core has it, from its start to its end."""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from replicator.errors import DataError, UnavailableError
from replicator.oauth import AccessTokens
from replicator.runtime.metrics import RefusalMetrics
from replicator.runtime.places import Places
from replicator.runtime.process.own_program import command_of, environment
from replicator.users import Directory
from replicator.workers.both_ends.mail_feed import Published
from replicator.workers.both_ends.metrics import DoorMetrics
from replicator.workers.both_ends.places import PlaceCalls
from replicator.workers.both_ends.sessions import RemoteSessions
from replicator.workers.both_ends.users import UserCalls
from replicator.workers.channel import Channel, DefectError
from replicator.workers.core.mail import CoreMail, MailCalls
from replicator.workers.order import Order

COMMAND = command_of("replicator.workers")

START_S = 60.0
"""Seconds until a door must accept. It takes one on an idle machine."""

END_S = 5.0
"""Seconds that a door has to end once its connection to the core has ended."""

PING_EVERY_S, ANSWER_S = 5.0, 10.0
"""Seconds between two pings of a door, and for an answer."""

UNANSWERED_MAX = 3
"""Unanswered pings in a row that mean a door that hangs. During a single one, the core itself may have paused."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoreServices:
    """Services of the core for its doors. `tokens`: if there is a provider of them."""

    mail: CoreMail
    store: Published
    users: Directory
    tokens: AccessTokens | None
    refusals: RefusalMetrics


class DoorProcess:
    """The process of one door. Belongs to the event loop.

    `interface`: of the core (`interface_digest`); `places`: those of the node, by protocol. `outcome` tells how the
    process ended, once `ended` is set, and `ended_in_order` whether it was told to.
    """

    def __init__(
        self, order: Order, interface: str, core: CoreServices, places: Mapping[str, Places], metrics: DoorMetrics
    ) -> None:
        self.number = order.number
        self.pid = 0
        self.ended = trio.Event()
        self.outcome = ""
        self.ended_in_order = False
        self.sessions: RemoteSessions | None = None
        """The process's sessions, once it accepts connections."""
        self._order = order
        self._interface = interface
        self._core = core
        self._places = places
        self._metrics = metrics
        self._accepts = False
        self._channel: Channel | None = None
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the process until it ends, or `end` is called; started once it accepts connections.

        Raises OSError if it cannot be started, and DataError if it ends before it accepts.
        """
        try:
            with self._scope:
                await self._run(task_status)
        finally:
            self.ended.set()
        if not self._accepts:
            raise DataError(f"the process of door {self.number} {self.outcome}")

    def retire(self) -> None:
        """Have the process accept no more connections, and end once the last one that it has is over."""
        if self._channel is not None:
            self._channel.tell("retire")

    async def wait_heard(self) -> None:
        """Wait until the process has done what it was told, or has ended, for some seconds at most."""
        with trio.move_on_after(ANSWER_S), suppress(UnavailableError):
            if self._channel is not None:
                await self._channel.call("ping")

    def end(self) -> None:
        """End the process with its connections."""
        self.outcome, self.ended_in_order = "was ended", True
        self._scope.cancel()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        """Run the process until it ends, and note how it ended. Raises OSError if it cannot be started."""
        ours, theirs = socket.socketpair()
        core = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with core:
            with theirs:
                process = await trio.lowlevel.open_process(
                    COMMAND,
                    stdin=theirs,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[number for numbers in self._order.sockets.values() for number in numbers],
                    env=environment(),
                    start_new_session=True,
                )
            self.pid = process.pid
            channel = self._channel = Channel(core)
            mail = MailCalls(channel, self._core.mail, self._core.store)
            UserCalls(channel, self._core.users, self._core.tokens)
            places = [PlaceCalls(channel, protocol, all_places) for protocol, all_places in self._places.items()]
            channel.quick_calls["metrics"] = partial(self._metrics.add, process.pid)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(mail.run)
                    await self._serve(channel, task_status)
                    nursery.cancel_scope.cancel()
            finally:
                self._metrics.forget(process.pid)
                for of_protocol in places:
                    of_protocol.close()
                with trio.CancelScope(shield=True):
                    await mail.close()
                    await _end(process)
        if not self.outcome:
            self.outcome, self.ended_in_order = f"has ended ({_how(process.returncode)})", process.returncode == 0

    async def _serve(self, channel: Channel, task_status: trio.TaskStatus[None]) -> None:
        """Answer the door until its connection ends."""
        async with trio.open_nursery() as nursery:

            async def open_and_watch() -> None:
                problem = await self._open(channel)
                if problem is not None:
                    self.outcome = f"cannot be opened: {problem}"
                    nursery.cancel_scope.cancel()
                    return
                self._accepts = True
                self.sessions = RemoteSessions(channel, f"door {self.number}")
                task_status.started()
                with suppress(UnavailableError):  # it has ended
                    await _until_silent(channel)
                    self.outcome = f"has left {UNANSWERED_MAX} pings unanswered, and was ended"
                    nursery.cancel_scope.cancel()

            nursery.start_soon(open_and_watch)
            await channel.run()
            nursery.cancel_scope.cancel()

    async def _open(self, channel: Channel) -> str | None:
        """Have the door accept connections. Return why it does not."""
        try:
            with trio.fail_after(START_S):
                problem = await channel.call("begin", self._interface, self._order.packed())
        except (UnavailableError, DefectError):
            return "it failed, and the log tells why"
        except trio.TooSlowError:
            return f"it took longer than {START_S:g} s"
        return None if problem is None else str(problem)


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
