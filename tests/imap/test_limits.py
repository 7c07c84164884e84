from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from replicator.imap.limits import LARGE_AT_ONCE, LARGE_BYTES, LARGE_PER_USER, LARGE_TIMEOUT_S, Connections
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from tests.imap.client import LOOPBACK, Client, connected
from tests.one_node import Gate, HookedMail


async def test_an_append_too_large_is_refused_before_it_is_sent(served: ImapServices) -> None:
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
async def test_a_stranger_cannot_fill_the_memory(served: ImapServices, hostile: bytes) -> None:
    async with connected(served) as client:
        await client.send(hostile)
        await client.send(b"z LOGOUT\r\n")
        lines = await client.until("z")
        assert any(" BAD " in line for line in lines)
        assert lines[-1] == "" or lines[-1].startswith("z OK")


@pytest.mark.parametrize("command", ["AUTHENTICATE PLAIN", "IDLE"])
async def test_endless_words_within_a_command_end_the_connection(served: ImapServices, command: str) -> None:
    async with connected(served) as client:
        if command == "IDLE":
            await client.log_in("alice", "INBOX")
        await client.send(f"a {command}\r\n")
        assert (await client.line()).startswith("+")
        await client.send(b"x" * 100_000)
        assert (await client.line()).startswith("* BYE the command's text is longer than")
        assert await client.line() == ""


async def test_a_name_with_line_ends_is_quoted_back_in_one_line(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        assert len(await client.run("SELECT &AA0ACg-t")) == 1


async def test_commands_that_are_none_end_the_connection_after_a_while(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(9):
            assert (await client.run("FROB"))[-1].startswith("t BAD Expected the name of a command")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        await client.send(b"GET / HTTP/1.1\r\n" * 10)
        lines = await client.until("nobody")
        assert len(lines) == 12
        assert lines[-2].startswith("* BYE ")


async def test_guessing_ends_the_connection(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(4):
            assert len(await client.run("LOGIN alice guess")) == 1
        bye, no = await client.run("LOGIN alice guess")
        assert bye.startswith("* BYE ")
        assert no.startswith("t NO [AUTHENTICATIONFAILED]")
        assert await client.line() == ""


async def test_a_user_has_so_many_connections_and_no_more(served: ImapServices) -> None:
    served = dataclasses.replace(served, connections=Connections(limit=3, limit_per_user=1))
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
    """Whether another connection from there is turned away."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=address))
        greeting = await Client(ours).line()
        nursery.cancel_scope.cancel()
    return greeting.startswith("* BYE [UNAVAILABLE] Too many connections")


async def test_strangers_have_a_part_of_all_places_and_of_that_a_part_each(served: ImapServices) -> None:
    few = Connections(limit_strangers=6, limit_strangers_per_address=2, limit_strangers_on_loopback=3)
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


def literal(size: int) -> bytes:
    return b"a APPEND INBOX {%d+}\r\n" % size + b"x" * size


async def test_large_appends_take_turns_and_small_ones_pass(mail: HookedMail, served: ImapServices) -> None:
    opening = trio.Event()
    mail.before_change = gate = Gate(open=opening)
    async with AsyncExitStack() as open_ones:
        clients = [await open_ones.enter_async_context(connected(served)) for _ in range(4 * LARGE_AT_ONCE)]
        for number, client in enumerate(clients):
            await client.log_in(f"user{number % LARGE_AT_ONCE}")
        for client in clients[::LARGE_AT_ONCE]:  # those of one user
            await client.send(literal(LARGE_BYTES + 1))
            await trio.testing.wait_all_tasks_blocked()
            await client.send(b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == LARGE_PER_USER
        others = [client for number, client in enumerate(clients) if number % LARGE_AT_ONCE]
        for client in others:
            await client.send(literal(LARGE_BYTES + 1) + b"\r\n")
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == LARGE_AT_ONCE
        await others[0].stream.aclose()
        opening.set()
        small = await open_ones.enter_async_context(connected(served))
        await small.log_in("user0")
        await small.send(literal(LARGE_BYTES) + b"\r\n")
        assert (await small.line()).startswith("a OK")
        for client in [*clients[::LARGE_AT_ONCE], *others[1:]]:
            assert (await client.line()).startswith("a OK")
    assert gate.most_waiting <= LARGE_AT_ONCE + 1


async def test_whoever_is_slow_with_a_large_append_gives_the_turn_back(
    served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(served) as slow, connected(served) as slow_too, connected(served) as other:
        for client in (slow, slow_too, other):
            await client.log_in("alice")
        began = autojump_clock.current_time()
        for client in (slow, slow_too):
            await client.send(literal(LARGE_BYTES + 1)[:-1])
        await trio.testing.wait_all_tasks_blocked()
        await other.send(literal(LARGE_BYTES + 1) + b"\r\n")
        await trio.sleep(LARGE_TIMEOUT_S - 1)
        assert not other.received
        assert (await other.line()).startswith("a OK")
        assert (await slow.line()).startswith("* BYE You said nothing for too long")
        assert autojump_clock.current_time() - began < LARGE_TIMEOUT_S + 1


async def test_a_turn_comes_back_however_a_large_append_ends(mail: HookedMail, served: ImapServices) -> None:
    for ending in range(2 * LARGE_AT_ONCE):
        async with connected(served) as client:
            await client.log_in("alice")
            await client.send(literal(LARGE_BYTES + 1))
            await trio.testing.wait_all_tasks_blocked()
            if ending % 2:
                await client.send(b" and more\r\n")
                assert (await client.line()).startswith("a BAD")
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send(literal(LARGE_BYTES + 1) + b"\r\n")
        assert (await client.line()).startswith("a OK")
    assert len(await mail.texts("alice")) == 1
