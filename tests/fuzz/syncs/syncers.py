"""The two ways in which a user's mail is synced: Dovecot begins, or the node."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import trio

from replicator.config import Address
from replicator.dsync.conversation.master_session import MasterSession
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.replica import OpenReplica
from replicator.dsync.users import Syncing
from replicator.errors import MailError
from tests.dsync.dovecot import Dovecot
from tests.dsync.pushed import remote
from tests.dsync.sides import HOSTNAME, Master, door
from tests.one_node import Names

DONE = "done"
AGAIN = "the next sync compares all mails"
NOT_FOUND = 68
"""Dovecot's exit code where it misses a folder above one that it has just moved; the next sync goes on."""

STATE_LOST = b"Incremental sync failed"
"""Dovecot's words where it has lost its MODSEQs since the state, with the log of what was expunged."""

NOTED_S = 10.0
"""Seconds within which a node has noted a sync that is over for Dovecot."""


class Syncer(Protocol):
    """One of the ways."""

    async def sync(self, kind: str) -> str:
        """Sync by a state (`s`), by what changed (`c`) or fully (`f`). Return DONE, AGAIN, or what was wrong."""
        ...

    def cut(self) -> None:
        """End the connection of the sync that runs."""
        ...


@dataclass
class ByDovecot:
    """Syncs that Dovecot begins."""

    master: Master
    syncing: Syncing
    streams: list[trio.SocketStream]
    random: Random

    async def sync(self, kind: str) -> str:
        """See `Syncer`. A Dovecot whose sync has failed may go on from the state before it."""
        before = self.master.state
        done = await self.master.sync(kind)
        await self.syncing.wait_free(self.master.user, NOTED_S)
        if done.returncode in {0, 2}:
            return AGAIN if done.returncode else DONE
        if STATE_LOST in done.stderr:
            return AGAIN
        if self.random.random() < 0.5:
            self.master.state = before
        if done.returncode == NOT_FOUND:
            return AGAIN
        return f"{done.returncode} {done.stderr.decode().strip()}"

    def cut(self) -> None:
        number = self.streams[-1].socket.fileno()
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as below:  # OSError: it has just ended
            below.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def by_dovecot(server: Dovecot, user: str, replica_of: OpenReplica, random: Random) -> AsyncIterator[ByDovecot]:
    streams, syncing = list[trio.SocketStream](), Syncing()

    def noted(stream: trio.abc.Stream) -> trio.abc.Stream:
        assert isinstance(stream, trio.SocketStream)
        streams.append(stream)
        return stream

    async with door(replica_of, noted, syncing, Names(user)) as address:
        yield ByDovecot(Master(server, address, user=user), syncing, streams, random)


@dataclass
class ByNode:
    """Syncs that the node begins."""

    address: Address
    user: str
    replica_of: OpenReplica
    _running: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def sync(self, kind: str) -> str:
        """See `Syncer`. A node knows syncs by a state and full ones."""
        with trio.CancelScope() as self._running:
            try:
                dovecot = remote(self.address)
                async with dovecot.begin_sync(self.user) as (peer, host), self.replica_of(self.user) as replica:
                    session = MasterSession(peer, replica, HOSTNAME, host)
                    await session.run(everywhere=True, full=kind == "f")
            except (PeerGoneError, DsyncError, MailError) as error:
                return f"{type(error).__name__}: {error}"
            return AGAIN if session.again or session.different else DONE
        return "cut"

    def cut(self) -> None:
        self._running.cancel()
