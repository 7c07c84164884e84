"""Outlines made as a running node makes them, and what a node then answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from replicator.imap.rendering.outline import OUTLINER
from replicator.imap.services import ImapServices
from replicator.mail.mailstore import BodyReader, MailStore, Outliner
from replicator.mail.view import Message
from replicator.replication import timing
from tests.imap.client import connected
from tests.one_node import HookedMail


@contextmanager
def counted(mail: MailStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Note the UIDs of messages whose body is read."""
    read, read_body, read_bodies = list[int](), mail.read_body, mail.read_bodies

    async def note(message: Message) -> BodyReader:
        read.append(message.uid)
        return await read_body(message)

    async def note_all(messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
        some = [*messages]
        found = await read_bodies(some, max_bytes)
        read.extend(message.uid for message in some if message.content_hash in found)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(mail, "read_body", note)
        patched.setattr(mail, "read_bodies", note_all)
        yield read


@asynccontextmanager
async def outlining(
    mail: HookedMail, clock: trio.testing.MockClock, outliner: Outliner = OUTLINER
) -> AsyncIterator[None]:
    """Make outlines of the bodies that are here, and of those that come in the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mail.outline, outliner)
        await trio.sleep_until(clock.current_time() + 2 * timing.OUTLINES_EVERY_S)
        yield
        nursery.cancel_scope.cancel()


async def answers(served: ImapServices, commands: list[str]) -> list[bytes]:
    found = []
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for command in commands:
            await client.send(f"t {command}\r\n")
            found.append(await client.octets())
    return found
