# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
import email
import logging
import re
import smtplib
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from email.message import EmailMessage
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from protocol.values import UidSet
from replicator.config import LimitsConfig
from replicator.errors import DiskFullError, DurabilityError, UnavailableError
from replicator.lmtp import LmtpServer, LmtpServices
from replicator.lmtp.machine import LmtpMachine
from replicator.lmtp.server import COMMAND_BYTES, RECEIVE_BYTES
from replicator.lmtp.trace import host_name
from replicator.mail.mailstore import MESSAGE_BYTES_MAX
from replicator.replication.writes.quotas import Quotas
from replicator.runtime.metrics import LmtpMetrics, QuotaMetrics, RefusalMetrics
from replicator.runtime.sessions import NodeSessions
from replicator.store.store import Store
from replicator.users import QuotaLimits, Recipients, UserDirectory, add_user
from tests.limits import limits_by
from tests.one_door import remote_mail
from tests.one_node import Gate, HookedMail, Names, SinkLog, one_node

TRACE_BYTES = 102  # size of the trace headers for two recipients
NOW_MS = 1_700_000_000_000
TRACE_ID = "5eed"
ENDED = b"421 4.3.2 an operator has ended this session; try again later\r\n"
USERS = Names("alice", "bob", "carol@example.org", *(f"user{n}" for n in range(60)))


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


async def bodies(mail: HookedMail, user: str) -> list[bytes]:
    """Return the user's messages without the trace headers that a message of several recipients gets."""
    return [body.split(b"\r\n", 4)[4] for body in await mail.bodies(user)]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(params=["in the core", "apart"])
async def services(
    mail: HookedMail, registry: CollectorRegistry, request: pytest.FixtureRequest
) -> AsyncIterator[LmtpServices]:
    """The services of a door in the core's process, and of one in a process of its own."""
    of_core = LmtpServices(
        mail,
        Recipients(USERS),
        "dc1.mail",
        metrics=LmtpMetrics(registry),
        clock_ms=lambda: NOW_MS,
        new_id=lambda: TRACE_ID,
    )
    if request.param == "in the core":
        yield of_core
        return
    async with remote_mail(mail) as apart:
        yield replace(of_core, mail=apart)


pieces_as_they_come = pytest.mark.parametrize("services", ["in the core"], indirect=True)
"""Mark of tests of when the store gets which piece: a door of its own hands on larger ones, later (`RemoteSink`)."""


def stored(user: str, uid: int = 1) -> bytes:
    return f"250 2.0.0 <{user}> INBOX uid {uid} stored\r\n".encode()


@pytest.fixture
async def port(services: LmtpServices, nursery: trio.Nursery) -> AsyncIterator[int]:
    serve = partial(trio.serve_tcp, LmtpServer(services).serve, 0, host="127.0.0.1")
    [listener] = await nursery.start(serve)
    yield listener.socket.getsockname()[1]
    nursery.cancel_scope.cancel()


async def test_metrics_count_answers_by_class(port: int, mail: HookedMail, registry: CollectorRegistry) -> None:
    mail.before_change = Gate({"bob": UnavailableError("no master can be reached")})

    def deliver() -> None:
        with smtplib.LMTP("127.0.0.1", port) as client:
            client.sendmail("me@example.com", ["alice", "bob", "nobody"], b"Subject: x\r\n\r\n")
            client.getreply()

    await trio.to_thread.run_sync(deliver)
    name = "replicator_lmtp_deliveries_total"
    assert [registry.get_sample_value(name, {"code": code}) for code in ("2xx", "4xx", "5xx")] == [1, 1, None]
    assert registry.get_sample_value("replicator_lmtp_rejected_recipients_total", {"code": "5xx"}) == 1
    assert registry.get_sample_value("replicator_lmtp_delivery_seconds_count") == 1


async def test_smtplib_delivers_a_message(port: int, mail: HookedMail) -> None:
    message = EmailMessage()
    message["Subject"] = "Grüße"
    message.set_content("one\n.two\n..\n\nfünf\n", cte="8bit")

    def deliver() -> dict[str, tuple[int, bytes]]:
        with smtplib.LMTP("127.0.0.1", port, local_hostname="mx.example") as client:
            client.ehlo()
            assert client.has_extn("PIPELINING")
            assert client.esmtp_features["size"] == str(MESSAGE_BYTES_MAX)
            to = ["alice@example.net", "nobody@example.net", "carol@example.org"]
            refused = client.send_message(message, "sender@example.com", to)
            assert client.getreply() == (
                250,
                b"2.0.0 <carol@example.org> INBOX uid 1 stored",
            )  # the second recipient's answer, which smtplib leaves unread
            return refused

    refused = await trio.to_thread.run_sync(deliver)
    assert {address: code for address, (code, _) in refused.items()} == {"nobody@example.net": 550}
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    assert [message.received_ms for message in view.messages.values()] == [NOW_MS]
    [to_alice] = await mail.bodies("alice")
    assert to_alice.startswith(
        b"Return-Path: <sender@example.com>\r\n"
        b"Received: from mx.example ([127.0.0.1])\r\n"
        b"\tby dc1.mail with LMTP id 5eed;\r\n"
        b"\tTue, 14 Nov 2023 22:13:20 +0000\r\n"
    )
    assert await bodies(mail, "alice") == await bodies(mail, "carol@example.org")
    stored = email.message_from_bytes((await bodies(mail, "alice"))[0])
    assert stored.get_payload(decode=True) == "one\r\n.two\r\n..\r\n\r\nfünf\r\n".encode()


@pytest.mark.parametrize(("defer", "reply"), [(False, b"552 5.2.2 "), (True, b"452 4.2.2 ")])
async def test_message_beyond_a_quota_is_refused_or_deferred(
    tmp_path: Path, nursery: trio.Nursery, *, defer: bool, reply: bytes
) -> None:
    """RFC 3463 section 3.3: mailbox full. The reply for good is Dovecot's default, too."""

    def limits_of(user: str) -> QuotaLimits:
        return QuotaLimits(storage_bytes=200 if user == "alice" else None)

    def quotas(store: Store) -> Quotas:
        return Quotas(store.usage, limits_by(limits_of), defer=defer, metrics=QuotaMetrics(registry))

    async def deliver(body: bytes) -> list[bytes]:
        await client.ask(b"MAIL FROM:<>\r\nRCPT TO:<alice>\r\nRCPT TO:<bob>\r\nDATA\r\n")
        return (await client.ask(body + b"\r\n.\r\n")).splitlines()

    registry = CollectorRegistry()
    async with one_node(tmp_path, quotas=quotas) as mail:
        client = await connect(LmtpServer(LmtpServices(mail, Recipients(USERS), "dc1.mail")), nursery)
        await client.ask(b"LHLO x\r\n")
        assert await deliver(b"") == [stored("alice").rstrip(), stored("bob").rstrip()]
        alice, bob = await deliver(b"x" * 100)
        assert (
            alice == reply + b"this would exceed the user's quota of storage; there is room once mail has been deleted"
        )
        assert bob == stored("bob", 2).rstrip()
        assert len(await mail.bodies("alice")) == 1
        await mail.expunge(await mail.open_mailbox(await mail.folder("alice", "INBOX")), UidSet.of([1]))
        assert await deliver(b"") == [stored("alice", 2).rstrip(), stored("bob", 3).rstrip()]
    assert registry.get_sample_value("replicator_quota_refusals_total", {"resource": "storage"}) == 1


async def test_each_recipient_gets_its_own_reply(port: int, mail: HookedMail) -> None:
    mail.before_change = Gate({"bob": DiskFullError("the disk is full"), "user1": DurabilityError("1 of 2 nodes")})

    def deliver() -> list[tuple[int, bytes]]:
        with smtplib.LMTP("127.0.0.1", port) as client:
            client.ehlo()
            client.mail("s@x")
            for user in ("alice", "bob", "user1", "user2"):
                client.rcpt(user)
            return [client.data(b"x\r\n"), client.getreply(), client.getreply(), client.getreply()]

    assert await trio.to_thread.run_sync(deliver) == [
        (250, b"2.0.0 <alice> INBOX uid 1 stored"),
        (452, b"4.3.1 the disk is full"),
        (451, b"4.3.0 1 of 2 nodes"),
        (250, b"2.0.0 <user2> INBOX uid 1 stored"),
    ]
    assert [len(await mail.bodies(user)) for user in ("alice", "bob", "user1", "user2")] == [1, 0, 0, 1]


class Client:
    """The far end of a connection in memory."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def answer(self) -> bytes:
        return bytes(await self.stream.receive_some(65536))

    async def ask(self, data: bytes) -> bytes:
        await self.stream.send_all(data)
        return await self.answer()


async def connect(server: LmtpServer, nursery: trio.Nursery, *, greeting: bytes = b"220 dc1.mail ") -> Client:
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(server.serve, far)
    client = Client(near)
    assert (await client.answer()).startswith(greeting)
    return client


async def test_replies_follow_the_order_of_the_recipients(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    mail.before_change = gate = Gate({f"user{n}": DiskFullError(f"no room for {n}") for n in range(1, 60, 2)})
    recipients = b"".join(b"RCPT TO:<user%d@x>\r\n" % n for n in range(60))
    await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\n" + recipients + b"DATA\r\n")
    answer = await client.ask(b"x\r\n.\r\n")
    assert answer.split(b"\r\n")[:-1] == [
        b"452 4.3.1 no room for %d" % n if n % 2 else stored(f"user{n}").rstrip() for n in range(60)
    ]
    assert 1 < gate.most_waiting <= 16


async def test_two_addresses_of_one_user_get_one_message_and_two_replies(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nRCPT TO:<alice+a@x>\r\nDATA\r\n")
    assert await client.ask(b"x\r\n.\r\n") == stored("alice") * 2
    assert len(await mail.bodies("alice")) == 1


async def test_trace_headers_of_other_senders(services: LmtpServices, mail: HookedMail, nursery: trio.Nursery) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO [IPv6:::1]\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    await client.ask(b".\r\n")
    await client.ask("MAIL FROM:<é@ü.org> SMTPUTF8\r\nRCPT TO:<alice>\r\nDATA\r\n".encode())
    await client.ask(b".\r\n")
    first, second = (body.decode() for body in await mail.bodies("alice"))
    assert first.startswith("Return-Path: <>\r\nReceived: from [IPv6:::1]\r\n\tby dc1.mail with LMTP id 5eed;\r\n")
    assert second.startswith("Return-Path: <é@ü.org>\r\n")
    assert "with UTF8LMTP id" in second


async def test_trace_header_names_the_recipient_only_if_it_is_the_only_one(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    for recipients in (["Alice+x@Example.org"], ["alice"], ["alice@x", "bob@x"], ["alice@x", "alice+y@x"]):
        await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\n" + b"".join(b"RCPT TO:<%b>\r\n" % r.encode() for r in recipients))
        await client.ask(b"DATA\r\n")
        await client.ask(b".\r\n")
    first, *others = await mail.bodies("alice")
    assert b"\tby dc1.mail with LMTP id 5eed\r\n\tfor <Alice+x@Example.org>;\r\n" in first
    assert not any(b"for <" in body for body in others)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"Return-Path: <old@x>\r\nSubject: x\r\n", b"Subject: x\r\n"),
        (b"RETURN-path :\r\n\t<old@x>\r\nreturn-path: <older@x>\r\n\r\nbody\r\n", b"\r\nbody\r\n"),
        (b"Return-Path: <x>\r\n", b""),
        (b"Subject: x\r\nReturn-Path: <x>\r\n", b"Subject: x\r\nReturn-Path: <x>\r\n"),
        (b"Return-Path: a\nb\r\n", b"Return-Path: a\nb\r\n"),
        (b"Return-Path-2: x\r\n", b"Return-Path-2: x\r\n"),
    ],
)
async def test_existing_return_path_is_replaced(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery, sent: bytes, kept: bytes
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO x\r\nMAIL FROM:<new@x>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    await client.ask(sent + b".\r\n")
    [body] = await mail.bodies("alice")
    assert body.startswith(b"Return-Path: <new@x>\r\nReceived: ")
    assert await bodies(mail, "alice") == [kept]


@pytest.mark.parametrize(
    ("sid", "cluster", "name"),
    [("dc1", "mail", "dc1.mail"), ("a-", "Other_1.", "a.Other-1"), ("a", "b..c", "a.b.c"), ("a", "b-_", "a.b")],
)
def test_host_name_is_a_valid_domain(sid: str, cluster: str, name: str) -> None:
    assert host_name(sid, cluster) == name


async def test_mail_is_deferred_while_the_list_of_users_is_unknown(tmp_path: Path, mail: HookedMail) -> None:
    path = tmp_path / "users.passwd"
    services = LmtpServices(mail, Recipients(UserDirectory(path)), "dc1.mail")
    async with trio.open_nursery() as nursery:
        client = await connect(LmtpServer(services), nursery)
        await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\n")
        assert (await client.ask(b"RCPT TO:<alice>\r\n")).startswith(b"451 4.3.0 the list of users cannot be read")
        add_user(path, "ALICE", "secret", scheme="PLAIN")
        assert (await client.ask(b"RCPT TO:<bob>\r\n")).startswith(b"550 5.1.1 ")
        assert (await client.ask(b"RCPT TO:<Alice@Example.org>\r\n")).startswith(b"250 ")
        path.unlink()
        assert (await client.ask(b"RCPT TO:<alice>\r\n")).startswith(b"250 ")
        assert (await client.ask(b"RCPT TO:<bob>\r\n")).startswith(b"550 ")
        nursery.cancel_scope.cancel()


async def test_messages_and_refusals_are_logged(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mail.before_change = Gate({"bob": DiskFullError("the disk is full")})
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO x\r\nMAIL FROM:<s@x>\r\nRCPT TO:<nobody uid=1>\r\nRCPT TO:<nobody>\r\n")
    await client.ask(b"RCPT TO:<alice@x>\r\nRCPT TO:<bob>\r\nDATA\r\n")
    await client.ask(b"Subject: x\r\nMessage-Id:\r\n <1@x>\r\n\r\nMessage-ID: <2@x>\r\n.\r\n")
    [body] = await mail.bodies("alice")
    size = len(body)
    assert [re.sub(r" entry=dc1\.\w+:\d+$", " entry=NAME", record.getMessage()) for record in caplog.records] == [
        'rejected code=501 from=<s@x> rcpt="TO:<nobody uid=1>" reason="write RCPT TO:<address>"',
        'rejected code=550 from=<s@x> rcpt=TO:<nobody> reason="no such user here"',
        f"delivered mid=<1@x> from=<s@x> to=alice uid=1 size={size} id=5eed entry=NAME",
        f'refused mid=<1@x> from=<s@x> to=bob code=452 reason="the disk is full" size={size} id=5eed',
    ]


async def test_idle_client_is_disconnected_with_a_reply(
    services: LmtpServices, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await trio.sleep(290)
    assert await client.ask(b"NOOP\r\n") == b"250 2.0.0 OK\r\n"
    await trio.sleep(290)
    assert await client.answer() == b"421 4.4.2 idle for too long; closing\r\n"
    assert await client.answer() == b""


async def test_message_that_takes_too_long_is_given_up(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    for _ in range(9):
        await trio.sleep(200)
        await client.stream.send_all(b"x")
    assert await client.ask(b"\r\n.\r\n") == stored("alice"), "slow, but within the limit"
    await client.ask(b"MAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while autojump_clock.current_time() < 3 * 3600:
            await client.stream.send_all(b"x")
            await trio.sleep(200)
    assert await client.answer() == b"421 4.4.2 the message did not end in time; closing\r\n"
    assert autojump_clock.current_time() < 2 * 3600
    assert len(await mail.bodies("alice")) == 1


async def test_client_that_leaves_within_a_message_stores_nothing(services: LmtpServices, mail: HookedMail) -> None:
    async with trio.open_nursery() as nursery:
        client = await connect(LmtpServer(services), nursery)
        await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
        await client.stream.send_all(b"half a message\r\n.\r")
        await client.stream.aclose()
    assert await mail.bodies("alice") == []


async def test_quit_closes_the_connection(services: LmtpServices, nursery: trio.Nursery) -> None:
    client = await connect(LmtpServer(services), nursery)
    assert await client.ask(b"QUIT\r\n") == b"221 2.0.0 bye\r\n"
    assert await client.answer() == b""


async def test_commands_sent_before_tls_end_the_connection(services: LmtpServices, mail: HookedMail) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with trio.open_nursery() as nursery:
        client = await connect(LmtpServer(replace(services, tls=lambda: context)), nursery)
        await client.ask(b"LHLO x\r\n")
        injected = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\nx\r\n.\r\n"
        assert await client.ask(b"STARTTLS\r\n" + injected) == b""
    assert await mail.bodies("alice") == []


@pytest.mark.parametrize("limit", ["lmtp_connections", "lmtp_connections_per_address"])
async def test_oldest_connection_without_a_message_makes_room(
    services: LmtpServices, mail: HookedMail, registry: CollectorRegistry, limit: str
) -> None:
    limits, refusals = replace(LimitsConfig(), **{limit: 2}), RefusalMetrics(registry)
    server = LmtpServer(replace(services, limits=limits, refusals=refusals))
    async with trio.open_nursery() as nursery:
        sender = await connect(server, nursery)
        await sender.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
        silent = await connect(server, nursery)
        other = await connect(server, nursery)
        assert await silent.answer() == b"421 4.3.2 too many connections; come back later\r\n"
        assert await silent.answer() == b""
        assert await sender.ask(b"x\r\n.\r\n") == stored("alice")
        await other.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
        await sender.ask(b"MAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
        refused = await connect(server, nursery, greeting=b"421 4.3.2 ")
        assert await refused.answer() == b""
        assert await other.ask(b"x\r\n.\r\n") == stored("alice", 2)
        assert await sender.ask(b"x\r\n.\r\n") == stored("alice", 3)
        await other.ask(b"QUIT\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await connect(server, nursery)
        assert await sender.ask(b"NOOP\r\n") == b"250 2.0.0 OK\r\n"
        nursery.cancel_scope.cancel()
    assert registry.get_sample_value("replicator_refusals_total", {"door": "lmtp", "limit": limit}) == 2


async def test_connection_keeps_its_place_until_the_message_is_answered(
    services: LmtpServices, mail: HookedMail
) -> None:
    server = LmtpServer(replace(services, limits=replace(LimitsConfig(), lmtp_connections=1)))
    near, far = trio.testing.lockstep_stream_pair()  # an answer is on its way until the client reads it
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, far)
        sender = Client(near)
        await sender.answer()
        await sender.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
        await sender.stream.send_all(b"x\r\n.\r\n")
        await trio.testing.wait_all_tasks_blocked()
        while not await mail.bodies("alice"):
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await connect(server, nursery, greeting=b"421 4.3.2 ")
        assert await sender.answer() == stored("alice")
        nursery.cancel_scope.cancel()


DATA = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nRCPT TO:<bob>\r\nDATA\r\n"
LARGE = b"Subject: large\r\nMessage-ID: <1@x>\r\n\r\n" + b"0123456789.\r\n" * 30_000


@pieces_as_they_come
async def test_large_message_is_stored_piece_by_piece(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    mail.sinks = sinks = SinkLog()
    client = await connect(LmtpServer(services), nursery)
    await client.ask(DATA)
    assert await client.ask(LARGE + b".\r\n") == stored("alice") + stored("bob")
    assert await bodies(mail, "alice") == await bodies(mail, "bob") == [LARGE]
    assert len(sinks.written) >= len(LARGE) // RECEIVE_BYTES
    assert max(map(len, sinks.written)) <= RECEIVE_BYTES + 1000
    assert (sinks.opened, sinks.open) == (1, 0)


@pieces_as_they_come
@pytest.mark.parametrize("at", [0, 1, 5, None])
async def test_error_of_the_store_is_told_to_each_recipient(
    services: LmtpServices,
    mail: HookedMail,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
    at: int | None,
) -> None:
    caplog.set_level(logging.INFO)
    mail.sinks = sinks = SinkLog(fails_at=at, fails_at_end=at is None, error=DiskFullError("the disk is full"))
    client = await connect(LmtpServer(services), nursery)
    await client.ask(DATA)
    assert await client.ask(LARGE + b".\r\nNOOP\r\n") == b"452 4.3.1 the disk is full\r\n" * 2 + b"250 2.0.0 OK\r\n"
    assert len(sinks.written) == at if at is not None else sinks.written
    assert (sinks.failures, sinks.open) == (1, 0)
    refusal = f'refused mid=<1@x> from=<> to=bob code=452 reason="the disk is full" size={len(LARGE) + TRACE_BYTES}'
    assert caplog.records[-1].getMessage().startswith(refusal)
    mail.sinks = None
    await client.ask(b"MAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    assert await client.ask(b"x\r\n.\r\n") == stored("alice")
    assert len(await mail.bodies("bob")) == 0


@pieces_as_they_come
async def test_too_large_message_is_dropped_from_the_store_at_once(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    mail.sinks = sinks = SinkLog()
    client = await connect(LmtpServer(replace(services, max_message_bytes=100_000)), nursery)
    await client.ask(DATA)
    await client.stream.send_all(LARGE)
    await trio.testing.wait_all_tasks_blocked()
    assert (sinks.opened, sinks.open) == (1, 0)
    assert sum(map(len, sinks.written)) <= 100_000 + TRACE_BYTES
    too_large = b"552 5.3.4 the message is larger than 100000 bytes\r\n"
    assert await client.ask(b".\r\nNOOP\r\n") == too_large * 2 + b"250 2.0.0 OK\r\n"
    assert await mail.bodies("alice") == []


@pieces_as_they_come
async def test_client_that_leaves_within_a_large_message_stores_nothing(
    services: LmtpServices, mail: HookedMail
) -> None:
    mail.sinks = sinks = SinkLog()
    async with trio.open_nursery() as nursery:
        client = await connect(LmtpServer(services), nursery)
        await client.ask(DATA)
        await client.stream.send_all(LARGE)
        await trio.testing.wait_all_tasks_blocked()
        assert (sinks.opened, sinks.open) == (1, 1)
        await client.stream.aclose()
    assert (sinks.opened, sinks.open) == (1, 0)
    assert await mail.bodies("alice") == []


@pieces_as_they_come
async def test_silence_within_a_message_ends_the_connection(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    mail.sinks = sinks = SinkLog()
    client = await connect(LmtpServer(services), nursery)
    await client.ask(DATA)
    assert await client.ask(b"half a message") == b"421 4.4.2 idle for too long; closing\r\n"
    assert await client.answer() == b""
    assert (sinks.opened, sinks.open) == (1, 0)


async def test_smaller_size_limit_is_announced_and_enforced(services: LmtpServices, nursery: trio.Nursery) -> None:
    client = await connect(LmtpServer(replace(services, max_message_bytes=10)), nursery)
    assert b"250 SIZE 10\r\n" in await client.ask(b"LHLO x\r\n")
    await client.ask(b"MAIL FROM:<>\r\nRCPT TO:<alice>\r\nDATA\r\n")
    assert await client.ask(b"twelve bytes\r\n.\r\n") == b"552 5.3.4 the message is larger than 10 bytes\r\n"


async def test_stored_body_equals_the_received_one(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    body = b"Subject: x\r\n\r\n.one\r\n\0\xff\r\n"
    client = await connect(LmtpServer(services), nursery)
    for uid in (1, 2):
        await client.ask(b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\nRCPT TO:<bob>\r\nDATA\r\n")
        answer = await client.ask(body.replace(b"\r\n.", b"\r\n..") + b".\r\n")
        assert answer == stored("alice", uid) + stored("bob", uid)
    for user in ("alice", "bob"):
        assert await bodies(mail, user) == [body, body]


async def test_commands_are_read_in_small_pieces_and_messages_in_large_ones(
    services: LmtpServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[tuple[bool, int]] = []
    receive = LmtpMachine.receive

    def note(machine: LmtpMachine, data: bytes | bytearray) -> None:
        pieces.append((machine.in_message, len(data)))
        receive(machine, data)

    monkeypatch.setattr(LmtpMachine, "receive", note)
    lines = 5000
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LmtpServer(services).serve, theirs)
        opening = b"LHLO mx\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<alice>\r\nDATA\r\n"
        await ours.send_all(opening + b"x" * 200_000 + b"\r\n.\r\n" + b"NOOP\r\n" * lines + b"QUIT\r\n")
        answers = b""
        while data := await ours.receive_some():
            answers += bytes(data)
    assert answers.count(b"\r\n250") >= lines
    assert max(size for in_message, size in pieces if not in_message) <= COMMAND_BYTES
    assert max(size for in_message, size in pieces if in_message) == RECEIVE_BYTES


async def test_commands_that_came_with_a_message_are_answered_after_it(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    client = await connect(LmtpServer(services), nursery)
    await client.ask(DATA)
    unknown = b"RCPT TO:<nobody>\r\n"
    answers = await client.ask(b"x\r\n.\r\nNOOP\r\nMAIL FROM:<>\r\n" + unknown + b"QUIT\r\n")
    assert [line[:3] for line in answers.splitlines()] == [b"250", b"250", b"250", b"250", b"550", b"221"]
    assert answers.startswith(stored("alice") + stored("bob"))
    assert await client.answer() == b""
    assert len(await mail.bodies("bob")) == 1


async def test_operators_end_sessions_after_the_message_that_is_arriving(
    services: LmtpServices, mail: HookedMail, nursery: trio.Nursery
) -> None:
    node = NodeSessions(services.sessions)
    client = await connect(LmtpServer(services), nursery)
    [session] = await node.list(None, lambda _: True)
    assert (session.protocol, session.user, session.doing, session.tls) == ("lmtp", None, None, False)
    await client.ask(DATA)
    [session] = await node.list(None, lambda _: True)
    assert session.doing == "DATA"
    assert await node.end(None, lambda _: True) == [session]
    answers = await client.ask(b"x\r\n.\r\n")
    while not answers.endswith(ENDED):
        answers += await client.answer()
    assert answers == stored("alice") + stored("bob") + ENDED
    assert await client.answer() == b""
    assert len(await mail.bodies("alice")) == 1
    assert await node.list(None, lambda _: True) == []


async def test_operators_end_idle_sessions_at_once(services: LmtpServices, nursery: trio.Nursery) -> None:
    client = await connect(LmtpServer(services), nursery)
    assert await NodeSessions(services.sessions).end(None, lambda _: True)
    assert await client.answer() == ENDED
    assert await client.answer() == b""
