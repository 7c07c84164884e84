"""Delivery to aliases: each user gets a mail once, and each recipient one answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.errors import DiskFullError, MailError, QuotaExceededError
from replicator.lmtp import LmtpServer, LmtpServices
from replicator.lmtp.machine import USERS_MAX
from replicator.users import Recipients
from tests.one_node import Gate, HookedMail, Names, one_node

ALIASES = """\
info@example.org  alice, bob
team@example.org  info@example.org, dave
@example.net      dave
"""


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


@pytest.fixture
async def stream(mail: HookedMail, tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[trio.abc.Stream]:
    file = tmp_path / "aliases"
    many = ", ".join(f"user{number}" for number in range(600))
    file.write_text(f"{ALIASES}many {many}\nagain {many}\nmore dave, {many.replace('user', 'other')}\n")
    names = [f"{name}{number}" for name in ("user", "other") for number in range(600)]
    users = Names("alice", "bob", "dave", *names)
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(LmtpServer(LmtpServices(mail, Recipients(users, file), "dc1.mail")).serve, far)
    await near.receive_some()
    yield near
    nursery.cancel_scope.cancel()


async def ask(stream: trio.abc.Stream, text: str, answers: int) -> list[str]:
    await stream.send_all(text.encode())
    received = b""
    while received.count(b"\r\n") < answers:
        received += await stream.receive_some()
    return received.decode().splitlines()


async def deliver(stream: trio.abc.Stream, *recipients: str) -> list[str]:
    """Deliver a mail. Return the answers after it, one for each recipient."""
    await ask(stream, "LHLO x\r\n", 6)
    rcpts = "".join(f"RCPT TO:<{one}>\r\n" for one in recipients)
    before = await ask(stream, f"MAIL FROM:<s@example.net>\r\n{rcpts}DATA\r\n", len(recipients) + 2)
    assert before[-1].startswith("354 ")
    return await ask(stream, "Subject: x\r\n\r\n.\r\n", len(recipients))


async def test_each_user_gets_a_mail_once_and_each_recipient_an_answer(
    stream: trio.abc.Stream, mail: HookedMail, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers = await deliver(stream, "info@example.org", "team@example.org", "alice@example.org", "any@example.net")
    assert [answer[:3] for answer in answers] == ["250"] * 4
    for user in ("alice", "bob", "dave"):
        assert len(await mail.bodies(user)) == 1
    said = [record.getMessage() for record in caplog.records if record.name == "replicator.lmtp.delivery"]
    assert len(said) == 3
    assert all(" alias=" in one for one in said)


@pytest.mark.parametrize(
    ("recipient", "header"),
    [("info@example.org", b"Delivered-To: info@example.org\r\n"), ("alice@example.org", b"")],
)
async def test_the_mail_tells_by_which_alias_it_came(
    stream: trio.abc.Stream, mail: HookedMail, recipient: str, header: bytes
) -> None:
    await deliver(stream, recipient)
    [body] = await mail.bodies("alice")
    assert body.startswith(b"Return-Path: <s@example.net>\r\n" + header + b"Received: ")
    assert f"for <{recipient}>".encode() in body


async def test_other_recipients_are_not_told(stream: trio.abc.Stream, mail: HookedMail) -> None:
    await deliver(stream, "info@example.org", "dave@example.org")
    [body] = await mail.bodies("dave")
    assert b"info" not in body


@pytest.mark.parametrize(
    ("failures", "answer"),
    [
        ({"bob": DiskFullError("no room")}, "452 4.3.1 <bob> no room"),
        ({"alice": QuotaExceededError("full", defer=False)}, "552 5.2.2 <alice> full"),
        (
            {"alice": QuotaExceededError("full", defer=False), "bob": DiskFullError("no room")},
            "452 4.3.1 <bob> no room",
        ),
    ],
)
async def test_the_answer_is_that_of_the_user_who_fares_worst(
    stream: trio.abc.Stream, mail: HookedMail, failures: dict[str, MailError], answer: str
) -> None:
    mail.before_change = Gate(failures)
    assert await deliver(stream, "team@example.org") == [answer]
    assert len(await mail.bodies("dave")) == 1


async def test_a_message_has_so_many_users_at_most(stream: trio.abc.Stream) -> None:
    await ask(stream, "LHLO x\r\nMAIL FROM:<>\r\n", 7)
    assert USERS_MAX < 1201
    [first, same, more, one] = await ask(
        stream, "RCPT TO:<many>\r\nRCPT TO:<again>\r\nRCPT TO:<more>\r\nRCPT TO:<alice>\r\n", 4
    )
    assert [first[:3], same[:3], more[:3], one[:3]] == ["250", "250", "452", "250"]


async def test_unknown_addresses_are_refused(stream: trio.abc.Stream) -> None:
    await ask(stream, "LHLO x\r\nMAIL FROM:<>\r\n", 7)
    [answer] = await ask(stream, "RCPT TO:<nobody@example.org>\r\n", 1)
    assert answer == "550 5.1.1 no such user here"
