"""A door apart from its node's core, in one process, for tests: both ends of the connection, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from replicator.lmtp.services import Inboxes
from replicator.runtime.places import Places
from replicator.workers.channel import Channel
from replicator.workers.remote_mail import MailCalls, RemoteMail
from replicator.workers.remote_places import PlaceCalls, RemotePlaces


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield the core's end of a connection, and the door's, which last until the block ends."""
    core, door = map(Channel, trio.testing.memory_stream_pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(core.run)
        nursery.start_soon(door.run)
        yield core, door
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def remote_mail(mail: Inboxes, inline_max_bytes: int = 64 << 10) -> AsyncIterator[RemoteMail]:
    """Yield the mail as a door has it."""
    async with channels() as (core, door):
        calls = MailCalls(core, mail)
        yield RemoteMail(door, inline_max_bytes)
    with trio.CancelScope(shield=True):
        await calls.close()


@asynccontextmanager
async def remote_places(places: Places) -> AsyncIterator[RemotePlaces]:
    """Yield the places as a door has them."""
    async with channels() as (core, door):
        calls = PlaceCalls(core, places)
        yield RemotePlaces(door)
    calls.close()
