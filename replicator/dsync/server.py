"""Trio adapter of dsync: one task for each connection, which is one sync of one user's mail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from replicator.dsync.conversation.peer import Peer
from replicator.dsync.conversation.session import Session, Settled
from replicator.dsync.doveadm import Command, DoveadmMachine, Refusal
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.replica import Replica
from replicator.errors import MailError
from replicator.runtime.logs.fields import LogFields

log = logging.getLogger(__name__)

COMMAND_S = 30.0
"""Seconds for a client's password and command."""

SEND_S = 10.0
RECEIVE_BYTES = 4096


class Users(Protocol):
    """The users who have mail here."""

    async def ask(self, name: str) -> str | None:
        """Return the user's own name; None if there is none. Raises MailError."""
        ...


@dataclass(frozen=True, slots=True)
class DsyncServices:
    """Services of the node for connections. `hostname`: what this side is called in a sync."""

    users: Users
    replica_of: Callable[[str], Replica]
    password: bytes
    hostname: str


class DsyncServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: DsyncServices) -> None:
        self._services = services
        self._settled = Settled()

    async def serve(self, stream: trio.abc.Stream, address: str) -> None:
        """Take part in one sync, and close the connection."""
        fields: dict[str, object] = {"client": address or None}
        async with stream:
            try:
                machine = DoveadmMachine(self._services.password)
                command = await self._command(stream, machine)
                if command is None:
                    log.info("a sync is refused %s", LogFields({**fields, "reason": machine.refused}))
                    return
                fields["user"] = command.user
                await self._sync(stream, machine, command)
            except PeerGoneError as error:
                log.info("a sync has ended early %s", LogFields({**fields, "reason": error}))
            except (DsyncError, MailError) as error:
                log.warning("a sync has failed %s", LogFields({**fields, "reason": error}))
            except (trio.BrokenResourceError, trio.TooSlowError):
                pass  # the client is gone, or does not read; it tries again

    async def _command(self, stream: trio.abc.Stream, machine: DoveadmMachine) -> Command | None:
        """Return what the client wants; None if that was refused, or the client has left."""
        with trio.move_on_after(COMMAND_S):
            while (command := machine.advance()) is None:
                await _flush(stream, machine)
                data = b"" if machine.closed else await stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return None
                machine.receive(bytes(data))
            return command
        return None

    async def _sync(self, stream: trio.abc.Stream, machine: DoveadmMachine, command: Command) -> None:
        try:
            user = await self._services.users.ask(command.user)
        except MailError as error:
            machine.refuse(Refusal.TEMPORARY, str(error))
            await _flush(stream, machine)
            raise
        if user is None:
            machine.refuse(Refusal.NO_USER, "there is no such user")
            await _flush(stream, machine)
            return
        machine.accept()
        await _flush(stream, machine)
        peer = Peer(stream, machine.rest)
        await Session(peer, self._services.replica_of(user), self._services.hostname, self._settled).run()


async def _flush(stream: trio.abc.Stream, machine: DoveadmMachine) -> None:
    output = machine.take_output()
    if output:
        with trio.fail_after(SEND_S):
            await stream.send_all(output)
