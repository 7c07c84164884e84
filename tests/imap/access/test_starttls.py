from __future__ import annotations

import dataclasses
import ssl
from functools import partial

import pytest
import trio
import trio.testing
import trustme

from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from tests.imap.client import Client, services
from tests.one_node import HookedMail

REMOTE_ADDRESS = "192.0.2.7"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def served(authority: trustme.CA, mail: HookedMail) -> ImapServices:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("mail.example.org").configure_cert(context)
    return dataclasses.replace(services(mail), tls=lambda: context)


@pytest.fixture
def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def begin_starttls(nursery: trio.Nursery, served: ImapServices, *, more: str = "") -> Client:
    """Connect a client that has sent STARTTLS, followed by `more`, and has read the answer."""
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(partial(serve_imap, theirs, served, address=REMOTE_ADDRESS))
    client = Client(ours)
    greeting = await client.line()
    assert "STARTTLS" in greeting
    assert "LOGINDISABLED" in greeting
    await client.send("a STARTTLS\r\n" + more)
    assert (await client.line()).startswith("a OK")
    return client


async def test_login_is_allowed_after_starttls(served: ImapServices, client_context: ssl.SSLContext) -> None:
    async with trio.open_nursery() as nursery:
        open_client = await begin_starttls(nursery, served)
        client = Client(trio.SSLStream(open_client.stream, client_context, server_hostname="mail.example.org"))
        assert (await client.run("STARTTLS"))[-1].startswith("t BAD")
        capabilities = (await client.run("CAPABILITY"))[0]
        assert "AUTH=PLAIN" in capabilities
        assert "STARTTLS" not in capabilities
        await client.log_in("alice", "INBOX")
        assert (await client.run("LOGOUT"))[-1].startswith("t OK")


async def test_commands_sent_before_tls_are_discarded(served: ImapServices) -> None:
    async with trio.open_nursery() as nursery:
        client = await begin_starttls(nursery, served, more="b CREATE injected\r\n")
        assert await client.line() == ""


@pytest.mark.parametrize("said", [b"hello\r\n" * 100, b""])
async def test_invalid_tls_ends_the_connection(served: ImapServices, said: bytes) -> None:
    async with trio.open_nursery() as nursery:
        client = await begin_starttls(nursery, served)
        await client.send(said)
        await client.stream.aclose()
