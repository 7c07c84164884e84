# ruff: noqa: ARG001 - a clock fixture does its work by being asked for
import email
import smtplib
from collections.abc import AsyncIterator
from dataclasses import replace
from email.message import EmailMessage
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.errors import DiskFullError, DurabilityError
from replicator.lmtp import LmtpServer, LmtpServices
from replicator.lmtp.server import CONNECTIONS_MAX, LARGE_AT_ONCE, LARGE_BYTES
from tests.lmtp.memory_inbox import MemoryInboxes, Names
from tests.one_node import one_node

NOW_MS = 1_700_000_000_000
USERS = Names(frozenset({"alice", "bob", "carol@example.org"}) | {f"user{n}" for n in range(60)})


@pytest.fixture
def inboxes() -> MemoryInboxes:
    return MemoryInboxes()


@pytest.fixture
def services(inboxes: MemoryInboxes) -> LmtpServices:
    return LmtpServices(inboxes, USERS, "dc1", clock_ms=lambda: NOW_MS)


@pytest.fixture
async def port(services: LmtpServices, nursery: trio.Nursery) -> AsyncIterator[int]:
    serve = partial(trio.serve_tcp, LmtpServer(services).serve, 0, host="127.0.0.1")
    [listener] = await nursery.start(serve)
    yield listener.socket.getsockname()[1]
    nursery.cancel_scope.cancel()


async def test_a_real_client_delivers(port: int, inboxes: MemoryInboxes) -> None:
    message = EmailMessage()
    message["Subject"] = "Grüße"
    message.set_content("one\n.two\n..\n\nfünf\n", cte="8bit")

    def deliver() -> dict[str, tuple[int, bytes]]:
        with smtplib.LMTP("127.0.0.1", port, local_hostname="mx.example") as client:
            client.ehlo()
            assert client.has_extn("PIPELINING")
            assert client.esmtp_features["size"] == "52428800"
            to = ["alice@example.net", "nobody@example.net", "carol@example.org"]
            refused = client.send_message(message, "sender@example.com", to)
            assert client.getreply() == (250, b"2.0.0 stored")  # of the second recipient: smtplib reads one only
            return refused

    refused = await trio.to_thread.run_sync(deliver)
    assert {address: code for address, (code, _) in refused.items()} == {"nobody@example.net": 550}
    [to_alice] = inboxes.messages["alice"]
    assert to_alice.received_ms == NOW_MS
    assert to_alice.text.startswith(
        b"Return-Path: <sender@example.com>\r\n"
        b"Received: from mx.example ([127.0.0.1])\r\n"
        b"\tby dc1 with LMTP;\r\n"
        b"\tTue, 14 Nov 2023 22:13:20 +0000\r\n"
    )
    assert inboxes.bodies("alice") == inboxes.bodies("carol@example.org")
    stored = email.message_from_bytes(inboxes.bodies("alice")[0])
    assert stored.get_payload(decode=True) == "one\r\n.two\r\n..\r\n\r\nfünf\r\n".encode()


async def test_each_recipient_has_a_reply_of_its_own(port: int, inboxes: MemoryInboxes) -> None:
    inboxes.failures = {"bob": DiskFullError("the disk is full"), "user1": DurabilityError("1 of 2 nodes")}

    def deliver() -> list[tuple[int, bytes]]:
        with smtplib.LMTP("127.0.0.1", port) as client:
            client.ehlo()
            client.mail("s@x")
            for user in ("alice", "bob", "user1", "user2"):
                client.rcpt(user)
            return [client.data(b"x\r\n"), client.getreply(), client.getreply(), client.getreply()]

    assert await trio.to_thread.run_sync(deliver) == [
        (250, b"2.0.0 stored"),
        (452, b"4.3.1 the disk is full"),
        (451, b"4.3.0 1 of 2 nodes"),
        (250, b"2.0.0 stored"),
    ]
    assert sorted(inboxes.messages) == ["alice", "user2"]


class Client:
    """The far end of a connection in memory."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def answer(self) -> bytes:
        return bytes(await self.stream.receive_some(65536))

    async def ask(self, data: bytes) -> bytes:
        await self.stream.send_all(data)
        return await self.answer()


async def connect(server: LmtpServer, nursery: trio.Nursery) -> Client:
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(server.serve, far)
    client = Client(near)
    assert (await client.answer()).startswith(b"220 dc1 ")
    return client


async def test_replies_come_in_the_order_of_the_recipients(
    services: LmtpServices, inboxes: MemoryInboxes, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    inboxes.failures = {f"user{n}": DiskFullError(f"no room for {n}") for n in range(1, 60, 2)}
    recipients = b"".join(b"RCPT TO:<user%d@x>\r\n" % n for n in range(60))
    await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\n" + recipients + b"DATA\r\n")
    answer = await client.ask(b"x\r\n.\r\n")
    assert answer.split(b"\r\n")[:-1] == [
        b"452 4.3.1 no room for %d" % n if n % 2 else b"250 2.0.0 stored" for n in range(60)
    ]
    assert 1 < inboxes.saving_at_once <= 16


async def test_two_addresses_of_one_user_make_one_message_and_two_replies(
    services: LmtpServices, inboxes: MemoryInboxes, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nRCPT TO:<alice+a@x>\r\nDATA\r\n")
    assert await client.ask(b"x\r\n.\r\n") == b"250 2.0.0 stored\r\n" * 2
    assert len(inboxes.messages["alice"]) == 1


async def test_trace_headers_of_other_senders(
    services: LmtpServices, inboxes: MemoryInboxes, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO [IPv6:::1]\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    await client.ask(b".\r\n")
    await client.ask("MAIL FROM:<é@ü.org> SMTPUTF8\r\nRCPT TO:<alice>\r\nDATA\r\n".encode())
    await client.ask(b".\r\n")
    first, second = (message.text.decode() for message in inboxes.messages["alice"])
    assert first.startswith("Return-Path: <>\r\nReceived: from [IPv6:::1]\r\n\tby dc1 with LMTP;\r\n")
    assert second.startswith("Return-Path: <é@ü.org>\r\n")
    assert "with UTF8LMTP;" in second


async def test_an_idle_client_is_told_so(
    services: LmtpServices, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await trio.sleep(290)
    assert await client.ask(b"NOOP\r\n") == b"250 2.0.0 OK\r\n"
    await trio.sleep(290)
    assert await client.answer() == b"421 4.4.2 nothing heard for too long; closing\r\n"
    assert await client.answer() == b""


async def test_a_client_that_leaves_within_a_message_stores_nothing(
    services: LmtpServices, inboxes: MemoryInboxes
) -> None:
    async with trio.open_nursery() as nursery:
        client = await connect(LmtpServer(services), nursery)
        await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
        await client.stream.send_all(b"half a message\r\n.\r")
        await client.stream.aclose()
    assert inboxes.messages == {}


async def test_quit_closes(services: LmtpServices, nursery: trio.Nursery) -> None:
    client = await connect(LmtpServer(services), nursery)
    assert await client.ask(b"QUIT\r\n") == b"221 2.0.0 bye\r\n"
    assert await client.answer() == b""


async def test_connections_are_limited_and_come_free(services: LmtpServices) -> None:
    server = LmtpServer(services)
    async with trio.open_nursery() as nursery:
        clients = [await connect(server, nursery) for _ in range(CONNECTIONS_MAX)]
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve, far)
        assert await Client(near).answer() == b"421 4.3.2 too many connections; come back later\r\n"
        assert await Client(near).answer() == b""
        await clients[0].ask(b"QUIT\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await connect(server, nursery)
        nursery.cancel_scope.cancel()


async def test_large_messages_take_turns_and_small_ones_pass(
    services: LmtpServices, inboxes: MemoryInboxes, nursery: trio.Nursery
) -> None:
    server = LmtpServer(services)
    start = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n"
    large = [await connect(server, nursery) for _ in range(LARGE_AT_ONCE + 1)]
    for client in large:
        await client.ask(start)
        await client.stream.send_all(b"x" * (LARGE_BYTES + 1))
    await trio.testing.wait_all_tasks_blocked()
    for client in large:
        await client.stream.send_all(b"\r\n.\r\n")
    small = await connect(server, nursery)
    await small.ask(start)
    assert await small.ask(b"small\r\n.\r\n") == b"250 2.0.0 stored\r\n"
    for client in large:
        assert await client.answer() == b"250 2.0.0 stored\r\n"
    assert len(inboxes.messages["alice"]) == LARGE_AT_ONCE + 2


async def test_whoever_leaves_gives_the_place_of_a_large_message_back(
    services: LmtpServices, nursery: trio.Nursery
) -> None:
    server = LmtpServer(services)
    start = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n"
    for _ in range(LARGE_AT_ONCE):
        client = await connect(server, nursery)
        await client.ask(start)
        await client.stream.send_all(b"x" * (LARGE_BYTES + 1))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
    client = await connect(server, nursery)
    await client.ask(start)
    await client.stream.send_all(b"x" * (LARGE_BYTES + 1))
    await trio.testing.wait_all_tasks_blocked()
    assert await client.ask(b"\r\n.\r\n") == b"250 2.0.0 stored\r\n"


async def test_the_ninth_large_message_waits(
    services: LmtpServices, inboxes: MemoryInboxes, nursery: trio.Nursery
) -> None:
    server = LmtpServer(services)
    inboxes.gate = trio.Event()
    start = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n"
    clients = [await connect(server, nursery) for _ in range(LARGE_AT_ONCE + 1)]
    for client in clients:
        await client.ask(start)
        await client.stream.send_all(b"x" * (LARGE_BYTES + 1))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.send_all(b"\r\n.\r\n")
    await trio.testing.wait_all_tasks_blocked()
    assert inboxes.saving == LARGE_AT_ONCE
    inboxes.gate.set()
    for client in clients:
        assert await client.answer() == b"250 2.0.0 stored\r\n"


async def test_a_smaller_limit_is_announced_and_kept(services: LmtpServices, nursery: trio.Nursery) -> None:
    client = await connect(LmtpServer(replace(services, max_message_bytes=10)), nursery)
    assert b"250 SIZE 10\r\n" in await client.ask(b"LHLO x\r\n")
    await client.ask(b"MAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    assert await client.ask(b"twelve bytes\r\n.\r\n") == b"552 5.3.4 the message is larger than 10 bytes\r\n"


async def test_into_a_real_mail_store(tmp_path: Path) -> None:
    body = b"Subject: x\r\n\r\n.one\r\n\0\xff\r\n"
    async with one_node(tmp_path) as mail, trio.open_nursery() as nursery:
        client = await connect(LmtpServer(LmtpServices(mail, USERS, "dc1", clock_ms=lambda: NOW_MS)), nursery)
        for _ in range(2):
            await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nRCPT TO:<bob>\r\nDATA\r\n")
            assert await client.ask(body.replace(b"\r\n.", b"\r\n..") + b".\r\n") == b"250 2.0.0 stored\r\n" * 2
        for user in ("alice", "bob"):
            view = await mail.open_mailbox(await mail.folder(user, "INBOX"))
            assert [message.received_ms for message in view.messages.values()] == [NOW_MS, NOW_MS]
            texts = [await mail.read_content(message) for message in view.messages.values()]
            assert [text.split(b"\r\n", 4)[4] for text in texts] == [body, body]
        nursery.cancel_scope.cancel()
