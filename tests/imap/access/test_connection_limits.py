from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from replicator.imap.connection_limits import ConnectionLimits
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from tests.imap.client import LOOPBACK, Client, connected


async def test_too_large_append_is_refused_before_it_is_sent(served: ImapServices) -> None:
    served = dataclasses.replace(served, max_message_bytes=100)
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send("a APPEND INBOX {101}\r\n")
        assert (await client.line()).startswith("a NO [TOOBIG] ")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        await client.send("b APPEND INBOX {101+}\r\n")
        assert (await client.line()).startswith("b NO [TOOBIG] ")
        assert (await client.line()).startswith("* BYE ")
        assert await client.line() == ""


@pytest.mark.parametrize(
    "hostile",
    [b"x" * 100_000, b"a LOGIN {5000+}\r\n", b"a LOGIN {4}\r\nabcd {99999999999999999999}\r\n", b"a NOOP " * 9000],
)
async def test_client_before_login_cannot_fill_the_memory(served: ImapServices, hostile: bytes) -> None:
    async with connected(served) as client:
        await client.send(hostile)
        await client.send(b"z LOGOUT\r\n")
        lines = await client.until("z")
        assert any(" BAD " in line for line in lines)
        assert lines[-1] == "" or lines[-1].startswith("z OK")


@pytest.mark.parametrize("command", ["AUTHENTICATE PLAIN", "IDLE"])
async def test_endless_line_within_a_command_ends_the_connection(served: ImapServices, command: str) -> None:
    async with connected(served) as client:
        if command == "IDLE":
            await client.log_in("alice", "INBOX")
        await client.send(f"a {command}\r\n")
        assert (await client.line()).startswith("+")
        await client.send(b"x" * 100_000)
        assert (await client.line()).startswith("* BYE the command's text is longer than")
        assert await client.line() == ""


async def test_mailbox_name_with_line_ends_is_answered_in_one_line(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        assert len(await client.run("SELECT &AA0ACg-t")) == 1


async def test_unknown_commands_end_the_connection_after_a_while(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(9):
            assert (await client.run("FROB"))[-1].startswith("t BAD Expected the name of a command")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        await client.send(b"GET / HTTP/1.1\r\n" * 10)
        lines = await client.until("nobody")
        assert len(lines) == 12
        assert lines[-2].startswith("* BYE ")


async def test_wrong_passwords_end_the_connection(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(4):
            assert len(await client.run("LOGIN alice guess")) == 1
        bye, no = await client.run("LOGIN alice guess")
        assert bye.startswith("* BYE ")
        assert no.startswith("t NO [AUTHENTICATIONFAILED]")
        assert await client.line() == ""


async def test_small_literals_together_cannot_fill_the_memory(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(b"a SEARCH" + (b" TEXT {65536+}\r\n" + b"x" * 65536) * 16 + b" TEXT {1}\r\n")
        assert await client.line() == "a BAD a literal of 1 bytes; all literals of a command may have 1048576"
        assert (await client.run("NOOP"))[-1].startswith("t OK")


async def test_connections_are_limited_in_total_and_per_user(served: ImapServices) -> None:
    served = dataclasses.replace(served, connections=ConnectionLimits(limit=3, limit_per_user=1))
    async with connected(served) as first, connected(served) as second, connected(served):
        await first.log_in("alice")
        assert (await second.run("LOGIN alice ecila"))[-1].startswith("t NO [LIMIT] ")
        await second.log_in("bob")
        ours, theirs = trio.testing.memory_stream_pair()
        await serve_imap(theirs, served, address=LOOPBACK)
        assert (await Client(ours).line()).startswith("* BYE [UNAVAILABLE] ")
    async with connected(served) as again:
        await again.log_in("alice")


async def refused(served: ImapServices, address: str) -> bool:
    """Return True if the server refuses another connection from this address."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=address))
        greeting = await Client(ours).line()
        nursery.cancel_scope.cancel()
    return greeting.startswith("* BYE [UNAVAILABLE] Too many connections")


async def test_connections_before_login_are_limited_per_address(served: ImapServices) -> None:
    few = ConnectionLimits(limit_strangers=6, limit_strangers_per_address=2, limit_strangers_on_loopback=3)
    served = dataclasses.replace(served, connections=few)
    async with AsyncExitStack() as open_ones:

        async def connect(address: str) -> Client:
            return await open_ones.enter_async_context(connected(served, address=address, secure=True))

        first = await connect("192.0.2.1")
        await connect("::ffff:192.0.2.1")
        assert await refused(served, "192.0.2.1")
        await connect("2001:db8::1")
        await connect("2001:db8::2")
        assert await refused(served, "2001:db8::3")
        await connect(LOOPBACK)
        assert not await refused(served, LOOPBACK)
        await connect("192.0.2.2")
        assert await refused(served, "192.0.2.3")
        await first.log_in("alice")
        assert not await refused(served, "192.0.2.3")
        assert not await refused(served, "192.0.2.1")
        assert (few.open, few.strangers.total(), few.users) == (6, 5, {"alice": 1})
    assert (few.open, few.strangers, few.users) == (0, {}, {})
