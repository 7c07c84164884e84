from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.runtime.metrics import RefusalMetrics
from replicator.runtime.places import Places
from replicator.users import Login
from tests.imap.client import LOOPBACK, Client, ReversedNameUsers, connected


async def test_too_large_append_is_refused_before_it_is_sent(served: ImapServices) -> None:
    served = dataclasses.replace(served, max_message_bytes=100)
    async with connected(served) as client:
        await client.log_in("alice")
        await client.send("a APPEND INBOX {101}\r\n")
        assert (await client.line()).startswith("a NO [TOOBIG] ")
        assert (await client.run("NOOP"))[-1].startswith("t OK")
        await client.send("b APPEND INBOX {101+}\r\n")
        assert (await client.line()).startswith("b BAD [TOOBIG] ")
        assert (await client.line()).startswith("* BYE [TOOBIG] ")
        assert await client.line() == ""


@pytest.mark.parametrize("command", ["LOGIN", "APPEND INBOX"])
async def test_literals_before_login_are_those_of_literal_minus(served: ImapServices, command: str) -> None:
    """RFC 7888 section 5: non-synchronizing literals of 4096 octets, and none above."""
    code = "[TOOBIG] " if command.startswith("APPEND") else ""
    async with connected(served) as client:
        await client.send(f"a LOGIN {{4096+}}\r\n{'x' * 4096} {{4096+}}\r\n{'y' * 4096}\r\n")
        assert (await client.line()).startswith("a NO [AUTHENTICATIONFAILED] ")
        await client.send("b ID ({4097}\r\n")
        assert await client.line() == "b BAD a literal of 4097 bytes; the limit is 4096"
        await client.send(f"c {command} {{4097+}}\r\n{'x' * 4097}\r\nd NOOP\r\n")
        assert await client.line() == f"c BAD {code}a literal of 4097 bytes; the limit is 4096"
        assert await client.line() == "* BYE [TOOBIG] a literal of 4097 bytes; the limit is 4096"
        assert await client.line() == ""


@pytest.mark.parametrize(
    "hostile",
    [b"x" * 100_000, b"a LOGIN {5000+}\r\n", b"a LOGIN {4}\r\nabcd {99999999999999999999}\r\n", b"a NOOP " * 10_000],
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


QUOTED_ID = b" ".join([b'"' + b"\\\\" * 30 + b'" "' + b"\\\\" * 1024 + b'"'] * 30)
LITERAL_ID = b" ".join([b"{30+}\r\n" + b"x" * 30 + b" {1024+}\r\n" + b"\xff" * 1024] * 30)


@pytest.mark.parametrize("fields", [QUOTED_ID, LITERAL_ID])
async def test_largest_id_is_taken_before_login(served: ImapServices, fields: bytes) -> None:
    """RFC 2971 section 3.3: 30 fields, whose names have 30 octets, and whose values have 1024."""
    async with connected(served) as client:
        await client.send(b"a ID (" + fields + b")\r\n")
        assert (await client.until("a"))[-1] == "a OK Server identified"


async def test_mailbox_name_with_line_ends_is_answered_in_one_line(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice")
        assert len(await client.run("SELECT &AA0ACg-t")) == 1


async def test_unknown_commands_end_the_connection_after_a_while(served: ImapServices) -> None:
    async with connected(served) as client:
        for _ in range(9):
            assert await client.run("FROB") == ["t BAD Unknown command FROB"]
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
        assert (
            await client.line()
            == "a BAD Only the message of an APPEND may be a literal of 1 bytes after so many others"
        )
        assert (await client.run("NOOP"))[-1].startswith("t OK")


async def test_connections_are_limited_in_total_and_per_user(served: ImapServices) -> None:
    limits = LimitsConfig(imap_connections=3, imap_connections_per_user=1)
    served = dataclasses.replace(served, limits=limits)
    async with connected(served) as first, connected(served) as second, connected(served) as third:
        await first.log_in("alice")
        assert (await second.run("LOGIN alice ecila"))[-1].startswith("t NO [LIMIT] You have 1 connections open")
        await second.log_in("bob")
        await third.log_in("carol")
        assert (await greeting(served, LOOPBACK)).startswith("* BYE [UNAVAILABLE] ")
    async with connected(served) as again:
        await again.log_in("alice")


async def greeting(served: ImapServices, address: str) -> str:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_imap, theirs, served, address=address))
        line = await Client(ours).line()
        nursery.cancel_scope.cancel()
    return line


async def test_silent_connections_do_not_keep_users_out(served: ImapServices) -> None:
    served = dataclasses.replace(served, limits=LimitsConfig(imap_unauthenticated=30))
    async with AsyncExitStack() as open_ones:
        user = await open_ones.enter_async_context(connected(served, address="192.0.2.1"))
        user_again = await open_ones.enter_async_context(connected(served, address=LOOPBACK))
        await user_again.log_in("alice", "INBOX")
        for number in range(270):
            address = f"192.0.2.{2 + number % 3}"
            await open_ones.enter_async_context(connected(served, address=address, secure=True))
        assert isinstance(served.places, Places)
        assert served.places.counts == (31, 30, 1)
        newcomer = await open_ones.enter_async_context(connected(served, address="192.0.2.1", secure=True))
        await newcomer.log_in("alice")
        assert (await user.line()).startswith("* BYE [UNAVAILABLE] Too many connections")  # it was the oldest stranger
        assert (await user_again.run("NOOP"))[-1].startswith("t OK")
    assert served.places.counts == (0, 0, 0)


async def test_strangers_of_an_address_are_dropped_for_one_of_the_same(served: ImapServices) -> None:
    limits = LimitsConfig(imap_unauthenticated_per_address=2, imap_unauthenticated_on_loopback=3)
    served = dataclasses.replace(served, limits=limits)
    async with AsyncExitStack() as open_ones:

        async def connect(address: str) -> Client:
            return await open_ones.enter_async_context(connected(served, address=address, secure=True))

        elsewhere = await connect("192.0.2.9")
        first = await connect("192.0.2.1")
        second = await connect("::ffff:192.0.2.1")
        await connect("192.0.2.1")
        assert (await first.line()).startswith("* BYE [UNAVAILABLE] ")
        await second.log_in("alice")
        await connect("192.0.2.1")
        same_site = [await connect(f"2001:db8::{number}") for number in range(3)]
        assert (await same_site[0].line()).startswith("* BYE [UNAVAILABLE] ")
        local = [await connect(LOOPBACK) for _ in range(4)]
        assert (await local[0].line()).startswith("* BYE [UNAVAILABLE] ")
        for client in (elsewhere, second, same_site[1], local[1]):
            assert (await client.run("NOOP"))[-1].startswith("t OK")


class SlowUsers(ReversedNameUsers):
    async def verify(
        self, name: str, password: str, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        await trio.sleep(1)
        return await super().verify(name, password, address=address, as_user=as_user)


async def test_connection_is_dropped_while_its_password_waits(served: ImapServices) -> None:

    served = dataclasses.replace(served, users=SlowUsers(), limits=LimitsConfig(imap_unauthenticated_on_loopback=1))
    async with connected(served) as client:
        await client.send("a LOGIN alice x\r\n")
        await trio.testing.wait_all_tasks_blocked()
        async with connected(served):
            assert (await client.line()).startswith("* BYE [UNAVAILABLE] ")
            assert await client.line() == ""


async def test_refusals_are_counted_by_their_limit(
    served: ImapServices, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()
    registry = CollectorRegistry()
    limits = LimitsConfig(imap_connections_per_user=1, imap_unauthenticated=1)
    served = dataclasses.replace(served, limits=limits, refusals=RefusalMetrics(registry))
    async with connected(served) as first:
        await first.log_in("alice")
        async with connected(served), connected(served) as second:
            await second.run("LOGIN alice ecila")
            await trio.sleep(limits.imap_login_seconds)
            assert (await second.line()).startswith("* BYE You did not log in")
            assert autojump_clock.current_time() - began >= limits.imap_login_seconds
    assert {
        sample.labels["limit"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "replicator_refusals_total"
    } == {"imap_connections_per_user": 1, "imap_unauthenticated": 1, "imap_login_seconds": 1}


@pytest.mark.parametrize("command", ["NOOP", "IDLE"])
async def test_silence_ends_a_session_after_the_configured_time(
    served: ImapServices, autojump_clock: trio.testing.MockClock, command: str
) -> None:
    served = dataclasses.replace(served, limits=LimitsConfig(imap_idle_seconds=7200))
    async with connected(served) as client:
        await client.log_in("alice")
        for number in range(2):
            await client.send(f"{number} {command}\r\n" if command == "NOOP" or number == 0 else "DONE\r\n")
            while await client.line() == "* OK Still here":
                pass
            autojump_clock.jump(7199)
            await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(1)
        assert (await client.line()).startswith("* BYE No command arrived for too long")
        assert await client.line() == ""
