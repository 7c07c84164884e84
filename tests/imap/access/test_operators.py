"""Sessions as operators see and end them."""

from __future__ import annotations

import dataclasses

import trio
import trio.testing

from replicator.imap.services import ImapServices
from replicator.runtime.sessions import NodeSessions, SessionStatus
from tests.imap.client import Client, connected

BYE = "* BYE [UNAVAILABLE] An operator has ended this session; try again later"


async def shown(served: ImapServices) -> SessionStatus:
    [session] = await NodeSessions(served.sessions).list(None, lambda _: True)
    return session


async def end_all(served: ImapServices) -> None:
    assert await NodeSessions(served.sessions).end(None, lambda _: True)


async def test_operators_see_who_does_what_where(served: ImapServices) -> None:
    now_ms = 1000
    served = dataclasses.replace(served, clock_ms=lambda: now_ms)
    async with connected(served, address="192.0.2.7", secure=True) as client:
        session = await shown(served)
        assert (session.protocol, session.user, session.address, session.tls) == ("imap", None, "192.0.2.7", True)
        await client.log_in("alice", "INBOX")
        await trio.testing.wait_all_tasks_blocked()
        session = await shown(served)
        assert (session.user, session.mailbox, session.doing, session.doing_since_ms) == ("alice", "INBOX", None, 1000)
        now_ms = 2000
        await client.send("i IDLE\r\n")
        assert await client.line() == "+ idling"
        session = await shown(served)
        assert (session.doing, session.doing_since_ms) == ("IDLE", 2000)
        await client.send("DONE\r\n")
        await client.until("i")
        await client.run("UNSELECT")
        await trio.testing.wait_all_tasks_blocked()
        assert ((await shown(served)).mailbox, (await shown(served)).doing) == (None, None)


async def test_ended_sessions_are_told_so_at_once_whatever_they_do(served: ImapServices) -> None:
    async def in_idle(client: Client) -> None:
        await client.log_in("alice", "INBOX")
        await client.send("i IDLE\r\n")
        assert await client.line() == "+ idling"

    async def silent(client: Client) -> None:
        await client.log_in("alice")

    async def before_login(client: Client) -> None:
        await client.run("NOOP")

    async def in_the_middle_of_a_literal(client: Client) -> None:
        await client.log_in("alice")
        await client.send("a APPEND INBOX {100000}\r\n")
        assert (await client.line()).startswith("+ ")
        await client.send("x" * 70_000)

    for state in (in_idle, silent, before_login, in_the_middle_of_a_literal):
        async with connected(served) as client:
            await state(client)
            await end_all(served)
            assert (state, await client.line()) == (state, BYE)
            assert await client.line() == ""
        assert await NodeSessions(served.sessions).list(None, lambda _: True) == []


async def test_a_client_that_reads_nothing_is_ended_too(served: ImapServices) -> None:
    async with connected(served) as client:
        await client.log_in("alice", "INBOX")
        for _ in range(2):
            await client.send("".join(f"{n} NOOP\r\n" for n in range(1000)))
        await end_all(served)
        with trio.fail_after(30):
            while await client.line():
                pass
    assert await NodeSessions(served.sessions).list(None, lambda _: True) == []
