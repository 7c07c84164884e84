"""A door apart from its node's core, in one process, for tests: both ends of the connection, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import trio
import trio.testing

from replicator.imap.rendering.search_text import SEARCH_TEXTS
from replicator.oauth import AccessTokens
from replicator.runtime.places import Places
from replicator.store.db.readers import Readers
from replicator.store.db.schema import open_reader
from replicator.store.search_texts.form import FILE
from replicator.store.search_texts.reader import SearchTextReader
from replicator.users import UserDirectory
from replicator.workers.both_ends.places import PlaceCalls, RemotePlaces
from replicator.workers.both_ends.users import RemoteTokens, RemoteUsers, UserCalls
from replicator.workers.channel import Channel
from replicator.workers.core.mail import MailCalls
from replicator.workers.door.mail import RemoteMail
from replicator.workers.door.search_texts import DoorSearchTexts
from tests.one_node import HookedMail, run_inline

INLINE_MAX_BYTES = 64 << 10  # as configured by default


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
async def remote_mail(mail: HookedMail) -> AsyncIterator[RemoteMail]:
    """Yield the mail as a door has it."""
    async with mail_ends(mail) as (_, apart):
        yield apart


@asynccontextmanager
async def mail_ends(mail: HookedMail) -> AsyncIterator[tuple[MailCalls, RemoteMail]]:
    """Yield the core's end of the mail, and the door's."""
    store = mail.store
    with closing(open_reader(store.path)) as connection:
        async with channels() as (core, door), trio.open_nursery() as nursery:
            calls = MailCalls(core, mail, store)
            reader = SearchTextReader(store.path.with_name(FILE), SEARCH_TEXTS.version)
            texts = DoorSearchTexts(door, reader, run_inline)
            readers = Readers([connection], run_inline, store.damage)
            apart = RemoteMail(door, readers, texts, INLINE_MAX_BYTES, run_inline)
            nursery.start_soon(texts.run)
            nursery.start_soon(calls.run)
            nursery.start_soon(apart.run)
            yield calls, apart
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await calls.close()


@asynccontextmanager
async def remote_users(
    users: UserDirectory, here: UserDirectory, tokens: AccessTokens | None = None
) -> AsyncIterator[tuple[RemoteUsers, RemoteTokens]]:
    """Yield the users and the access tokens as a door has them. `here`: what it reads of the users itself."""
    async with channels() as (core, door):
        UserCalls(core, users, tokens)
        yield RemoteUsers(door, here), RemoteTokens(door, tokens.scopes if tokens is not None else ())


@asynccontextmanager
async def remote_places(places: Places, door: str = "imap") -> AsyncIterator[RemotePlaces]:
    """Yield the places as a door has them."""
    async with channels() as (core, apart):
        calls = PlaceCalls(core, door, places)
        yield RemotePlaces(apart, door)
    calls.close()
