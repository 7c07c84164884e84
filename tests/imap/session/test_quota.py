"""Quotas by IMAP (RFC 9208)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicator.replication.writes.quotas import Quotas
from replicator.store.store import Store
from replicator.users import QuotaLimits
from tests.imap.client import Client, connected, fill, services
from tests.limits import limits_by
from tests.one_node import HookedMail, SinkLog, one_node

LIMITS = {"alice": QuotaLimits(storage_bytes=4096, messages=3), "bob": QuotaLimits(messages=10)}


def quotas(store: Store) -> Quotas:
    return Quotas(store.usage, limits_by(lambda user: LIMITS.get(user, QuotaLimits())))


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path, quotas=quotas) as mail:
        yield mail


@pytest.fixture
async def alice(mail: HookedMail) -> AsyncIterator[Client]:
    async with connected(services(mail)) as client:
        await client.log_in("alice", "INBOX")
        yield client


async def append(client: Client, body: str, mailbox: str = "INBOX") -> str:
    return (await client.run(f"APPEND {mailbox} {{{len(body)}+}}\r\n{body}"))[-1]


async def test_limits_and_what_is_used_are_told(alice: Client, mail: HookedMail) -> None:
    """RFC 9208 sections 4.1.1, 4.1.2 and 5.1: STORAGE counts in 1024 octets, and a mailbox need not exist."""
    for capability in ("QUOTA", "QUOTA=RES-STORAGE", "QUOTA=RES-MESSAGE"):
        assert capability in (await alice.run("CAPABILITY"))[0].split()
    await fill(mail, 2, b"x" * 600)
    await alice.run("NOOP")
    told = '* QUOTA "User quota" (STORAGE 2 4 MESSAGE 2 3)'
    assert await alice.run('GETQUOTA "User quota"') == [told, "t OK Quota listed"]
    for mailbox, shown in [("inbox", "INBOX"), ('"not/here yet"', "not/here yet"), ("Entw&APw-rfe", "Entw&APw-rfe")]:
        answer = await alice.run(f"GETQUOTAROOT {mailbox}")
        assert answer == [f'* QUOTAROOT "{shown}" "User quota"', told, "t OK Quota roots listed"]
    assert (await alice.run('GETQUOTA "other"'))[-1].startswith("t NO [NONEXISTENT] ")
    assert (await alice.run("GETQUOTAROOT Entw&rfe"))[-1].startswith("t NO [CANNOT] ")
    assert (await alice.run("GETQUOTA"))[-1].startswith("t BAD ")
    for limits in ("()", "(STORAGE 512)", "(STORAGE 512 MESSAGE 7)"):
        assert (await alice.run(f'SETQUOTA "User quota" {limits}'))[-1].startswith("t NO [NOPERM] ")


async def test_only_what_has_a_limit_is_told(mail: HookedMail) -> None:
    async with connected(services(mail)) as client:
        assert (await client.run('GETQUOTA "User quota"'))[-1].startswith("t BAD ")
        await client.log_in("bob")
        assert (await client.run("GETQUOTAROOT INBOX"))[1] == '* QUOTA "User quota" (MESSAGE 0 10)'
    async with connected(services(mail)) as client:
        await client.log_in("carol")
        assert await client.run("GETQUOTAROOT INBOX") == ['* QUOTAROOT "INBOX"', "t OK Quota roots listed"]
        assert (await client.run('GETQUOTA "User quota"'))[-1].startswith("t NO [NONEXISTENT] ")


async def test_status_tells_what_an_expunge_would_free(alice: Client, mail: HookedMail) -> None:
    """RFC 9208 section 4.1.4, also in a LIST-STATUS."""
    await fill(mail, 3, b"x" * 100)
    await alice.run("NOOP")
    items = "(MESSAGES DELETED-STORAGE deleted SIZE)"
    counted = '* STATUS "INBOX" (MESSAGES 3 DELETED-STORAGE {} DELETED {} SIZE 300)'
    assert (await alice.run(f"STATUS INBOX {items}"))[0] == counted.format(0, 0)
    await alice.run(r"STORE 1,3 +FLAGS (\Deleted)")
    assert (await alice.run(f"STATUS INBOX {items}"))[0] == counted.format(200, 2)
    assert (await alice.run(f'LIST "" INBOX RETURN (STATUS {items})'))[1] == counted.format(200, 2)
    await alice.run("EXPUNGE")
    assert (await alice.run("GETQUOTAROOT INBOX"))[1] == '* QUOTA "User quota" (STORAGE 1 4 MESSAGE 1 3)'


async def test_append_that_cannot_fit_is_refused_before_the_message_is_sent(alice: Client, mail: HookedMail) -> None:
    assert (await alice.run("APPEND INBOX {4097}"))[-1].startswith("t NO [OVERQUOTA] ")
    await alice.send("t APPEND INBOX {2000}\r\n")
    assert await alice.line() == "+ Send the literal"
    await alice.send("x" * 2000 + " {2097}\r\n")
    assert (await alice.until("t"))[-1].startswith("t NO [OVERQUOTA] ")
    assert len(await mail.bodies("alice")) == 0


async def test_messages_of_one_append_fit_together_or_not_at_all(alice: Client, mail: HookedMail) -> None:
    """RFC 3502 section 6.3.11: all or none, so they need room for all."""
    one = "{1+}\r\nx"
    assert (await alice.run(f"APPEND INBOX {one} {one} {one} {one}"))[-1].startswith("t NO [OVERQUOTA] ")
    assert (await mail.quota("alice")).messages == 0
    assert (await alice.run(f"APPEND INBOX {one} {one} {one}"))[-1].startswith("t OK")


async def test_append_beyond_the_quota_is_refused(alice: Client, mail: HookedMail) -> None:
    """RFC 9208 section 4.3.1."""
    assert (await append(alice, "x" * 4000)).startswith("t OK")
    assert (await append(alice, "x" * 97)).startswith("t NO [OVERQUOTA] this would exceed the user's quota of storage")
    assert (await append(alice, "x" * 96)).startswith("t OK")
    assert (await append(alice, "")).startswith("t OK")
    assert (await append(alice, "")).startswith("t NO [OVERQUOTA] this would exceed the user's quota of messages")
    assert len(await mail.bodies("alice")) == 3


async def test_copy_beyond_the_quota_is_refused_and_move_is_not(alice: Client, mail: HookedMail) -> None:
    """RFC 9208 section 4.3.1: COPY copies all or none; MOVE takes no more than there was."""
    await fill(mail, 2)
    await alice.run("CREATE Work")
    refused = "t NO [OVERQUOTA] this would exceed the user's quota of messages"
    assert (await alice.run("COPY 1:2 Work"))[-1].startswith(refused)
    assert len(await mail.bodies("alice", "Work")) == 0
    assert (await alice.run("COPY 1 Work"))[-1].startswith("t OK [COPYUID ")
    assert (await alice.run("MOVE 1:2 Work"))[-1] == "t OK Moved"
    assert (await append(alice, "x")).startswith(refused)
    assert len(await mail.bodies("alice", "Work")) == 3
    # Deleting a folder gives the room of its mail back.
    await alice.run("DELETE Work")
    assert (await append(alice, "x")).startswith("t OK")


async def test_stored_parts_of_a_message_count_before_they_are_read(alice: Client, mail: HookedMail) -> None:
    """RFC 4469: parts that come from the same mailbox take room again."""
    await fill(mail, 1, b"x" * 1500)
    mail.sinks = sinks = SinkLog()
    url = "URL /INBOX/;UID=1"
    assert (await alice.run(f"APPEND INBOX CATENATE ({url} {url})"))[-1].startswith("t NO [OVERQUOTA] ")
    assert sum(map(len, sinks.written)) == 1500
    assert (await alice.run(f"APPEND INBOX CATENATE ({url})"))[-1].startswith("t OK ")
