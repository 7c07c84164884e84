"""Trio adapter of dsync: one task for each connection, which is one sync of one user's mail."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import trio

from replicator.config import LimitsConfig
from replicator.dsync.conversation.folder_sync import how_different
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.conversation.remote_session import RemoteSession, Settled
from replicator.dsync.door.doveadm import USER, Attempt, Command, DoveadmMachine, Refusal
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.replica import OpenReplica
from replicator.dsync.users import Syncing, Users, user_meant
from replicator.errors import MailError, UnavailableError
from replicator.network.tls_stream import NOT_TLS
from replicator.runtime.addresses import client_address
from replicator.runtime.environment import wall_clock_ms
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.metrics import DoveadmMetrics, RefusalMetrics
from replicator.runtime.places import Limit, Place, PlaceLimits, Places
from replicator.runtime.process.loop_watch import doing
from replicator.runtime.sessions import Facts, OpenSession, Sessions
from replicator.users.attempts.queue import AttemptQueue

log = logging.getLogger(__name__)

COMMAND_S = 30.0
"""Seconds for a client's password and command."""

PATIENCE_S = 20.0
"""Seconds for which an attempt to log in may wait after failed ones."""

SEND_S = 10.0
"""Seconds for sending an answer to them."""

SYNC_ENDS_S = 5.0
"""Seconds for which a sync waits for another one of the user. One that is over for Dovecot may still be noted here."""

RECEIVE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DsyncServices:
    """Services of the node for connections.

    `password` returns the one that is right now, or raises OSError. `hostname`: what this side is called in a sync.
    """

    users: Users
    replica_of: OpenReplica
    password: Callable[[], Awaitable[bytes]]
    hostname: str
    metrics: DoveadmMetrics = field(default_factory=DoveadmMetrics)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    refusals: RefusalMetrics = field(default_factory=RefusalMetrics)
    sessions: Sessions = field(default_factory=Sessions)
    syncing: Syncing = field(default_factory=Syncing)
    clock_ms: Callable[[], int] = wall_clock_ms


class DsyncServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: DsyncServices) -> None:
        self._services = services
        self._settled = Settled()
        self._attempts = AttemptQueue()
        most = PlaceLimits(total=Limit(services.limits.doveadm_connections, "doveadm_connections"))
        self._places = Places(most, partial(services.refusals.refused, "doveadm"))

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Take part in one sync, and close the connection.

        Safe to cancel: what was saved stays, and the next sync goes on from there.
        """
        try:
            address = client_address(stream)
            async with stream, self._places.admit(address) as place:
                if place is not None:
                    connection = _Connection(stream, self._services, self._settled, self._attempts)
                    await connection.serve(place)
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read; it tries again


class _Connection:
    def __init__(
        self,
        stream: trio.abc.Stream,
        services: DsyncServices,
        settled: Settled,
        attempts: AttemptQueue,
    ) -> None:
        self._stream = stream
        self._services = services
        self._settled = settled
        self._attempts = attempts
        self._address = client_address(stream)
        self._user: str | None = None
        self._held = ExitStack()
        self._doing: str | None = None
        self._since_ms = services.clock_ms()

    def _facts(self) -> Facts:
        return Facts(self._user, self._doing, self._since_ms, None, isinstance(self._stream, trio.SSLStream))

    async def serve(self, place: Place) -> None:
        """Have a sync begun, and take part in it."""
        with self._services.sessions.opened("doveadm", self._address, self._facts) as session, self._held:
            await self._serve(place, session)

    async def _serve(self, place: Place, session: OpenSession) -> None:
        begun: bytes | None = None
        with trio.move_on_after(COMMAND_S):
            try:
                begun = await self._begin()
            except trio.BrokenResourceError as error:
                cause = error.__cause__
                if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                    self._tell("refused", _tls_failure(cause))
                raise
        if begun is not None and self._user is not None:
            doing("doveadm", self._address, "sync")
            self._doing, self._since_ms = "sync", self._services.clock_ms()
            try:
                with place.busy():
                    await self._sync(self._user, begun)
            except BaseException:
                if trio.current_effective_deadline() == -math.inf:  # cancelled, be it told by one or a group of them
                    self._tell("cut", "an operator has ended it" if session.was_ended else "the node stops")
                raise

    async def _begin(self) -> bytes | None:
        """Take the client's password and command, which name the user. Return what else it has sent; None to end."""
        machine = DoveadmMachine()
        command = await self._command(machine)
        if command is not None:
            await self._ask(command, machine)
        await self._flush(machine)
        if machine.refused is not None:
            self._tell("refused", machine.refused)
        return None if machine.closed else machine.rest

    async def _command(self, machine: DoveadmMachine) -> Command | None:
        """Return what the client wants; None if that was refused, or the client has left."""
        while not isinstance(found := machine.advance(), Command):
            if found is not None:
                await self._authenticate(found, machine)
                continue
            await self._flush(machine)
            data = b"" if machine.closed else bytes(await self._stream.receive_some(RECEIVE_BYTES))
            if not data:
                machine.close()
                return None
            machine.receive(data)
        return found

    async def _authenticate(self, attempt: Attempt, machine: DoveadmMachine) -> None:
        """Answer an attempt to log in. Guesses are delayed as those at the other doors are."""
        try:
            password = await self._services.password()
        except OSError as error:
            machine.deny(f"the file `password_file` in [doveadm] cannot be read: {error.strerror}")
            return
        if not password:
            machine.deny("the first line of the file `password_file` in [doveadm] is empty: write a password there")
            return

        async def check() -> bool | None:
            await trio.lowlevel.checkpoint()
            return attempt.fits(password) or None

        try:
            is_right = await self._attempts.in_turn(USER.decode(), self._address, check, PATIENCE_S)
        except UnavailableError as error:
            machine.deny(str(error))
            return
        if is_right:
            machine.admit()
        else:
            machine.deny("the client's password is wrong")

    async def _ask(self, command: Command, machine: DoveadmMachine) -> None:
        """Find the user, and answer the command."""
        try:
            self._user = await user_meant(self._services.users, command.user)
        except MailError as error:
            machine.refuse(Refusal.TEMPORARY, str(error))
            return
        syncing = self._services.syncing
        if self._user is not None:
            await syncing.wait_free(self._user, SYNC_ENDS_S)
        if self._user is None:
            machine.refuse(Refusal.NO_USER, f"there is no user {command.user[:100]!r}")
        elif not self._held.enter_context(syncing.held(self._user)):
            machine.refuse(Refusal.TEMPORARY, f"another sync of the user {self._user!r} is going on: try again later")
        else:
            machine.accept()

    async def _sync(self, user: str, received: bytes) -> None:
        peer, services = Peer(self._stream, received), self._services
        different = 0
        try:
            async with services.replica_of(user) as replica:
                session = RemoteSession(
                    peer, replica, services.hostname, self._settled, user=user, address=self._address
                )
                await session.run()
                different = session.different
        except PeerGoneError as error:
            self._tell("cut", str(error))
        except (DsyncError, MailError) as error:
            self._tell("failed", str(error))
        else:
            if different:
                self._tell("different", how_different(different))
            else:
                self._tell("done", None)

    async def _flush(self, machine: DoveadmMachine) -> None:
        output = machine.take_output()
        if output:
            with trio.fail_after(SEND_S):
                await self._stream.send_all(output)

    def _tell(self, result: str, reason: str | None) -> None:
        """Count and log how a sync has ended."""
        self._services.metrics.ended(result)
        fields = {"result": result, "user": self._user, "client": self._address or None, "reason": reason}
        level = logging.WARNING if result in {"failed", "different"} else logging.INFO
        log.log(level, "sync %s", LogFields({name: value for name, value in fields.items() if value is not None}))


def _tls_failure(error: ssl.SSLError) -> str:
    if error.reason in NOT_TLS:
        return "the client begins without TLS: write tcps: there, in place of tcp:"
    return f"TLS with the client fails: {error.reason or error}"
