"""Sessions that end where a BYE could be misread, and what operators see of hostile clients."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator
from functools import partial

import pytest
import trio
import trio.testing

from replicator.imap.rendering.fetch_answers import SPAN_BYTES
from replicator.imap.server import serve_imap
from replicator.imap.wire.connection import Connection
from replicator.mail.mailstore import BodyReader
from replicator.mail.view import Message
from replicator.mime.skeleton import Skeleton
from tests.imap.client import LOOPBACK, Client, connected, fill, services
from tests.one_node import HookedMail


class Stalled:
    """A body of which all but the first octets are long in coming."""

    def __init__(self, body: BodyReader, began: trio.Event) -> None:
        self._body = body
        self._began = began

    @property
    def skeleton(self) -> Skeleton:
        return self._body.skeleton

    async def check(self, start: int, end: int) -> None:
        await self._body.check(start, end)

    async def read(self, start: int, end: int) -> AsyncGenerator[bytes, None]:  # noqa: ARG002
        yield b"the first octets"
        self._began.set()
        await trio.sleep_forever()


async def test_session_that_ends_within_a_literal_is_told_nothing_more(
    mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalled(message: Message) -> BodyReader:
        return Stalled(await read_body(message), began)

    read_body, began = mail.read_body, trio.Event()
    await fill(mail, body=b"Subject: x\r\n\r\n" + b"x" * (SPAN_BYTES + 1))
    served = services(mail)
    ours, theirs = trio.testing.memory_stream_pair()
    client = Client(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=LOOPBACK))
        await client.line()
        await client.log_in("alice", "INBOX")
        monkeypatch.setattr(mail, "read_body", stalled)
        await client.send("a FETCH 1 BODY.PEEK[]\r\n")
        await began.wait()
        [session], _ = await served.sessions.page(0)
        assert await served.sessions.end([session.id]) == [session.id]
    rest = bytearray(client.received)
    async for data in ours:
        rest += data
    assert b"BYE" not in rest  # it would be a part of the mail


async def test_session_that_ends_as_compression_begins_is_told_under_it() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Connection(theirs, LOOPBACK, secure=True, login_s=60, idle_s=60)
    with trio.CancelScope() as scope:
        scope.cancel()
        await connection.compress()
    await connection.write([b"* BYE ended\r\n"])
    await connection.flush()
    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(await ours.receive_some()) == b"* BYE ended\r\n"


@pytest.mark.parametrize("verb", ["UID \x1b]0;title\x07", "\x9b31m", "x" * 5000])
async def test_operators_see_no_codes_and_little_of_unknown_commands(mail: HookedMail, verb: str) -> None:
    served = services(mail)
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        await client.send(f"a {verb} {{100000+}}\r\n")  # and not the literal
        await trio.testing.wait_all_tasks_blocked()
        [session], _ = await served.sessions.page(0)
    assert session.doing
    assert session.doing.isprintable()
    assert len(session.doing) < 100
