"""Quotas by IMAP (RFC 9208)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replicator.replication.writes.quotas import Quotas
from replicator.store.store import Store
from replicator.users import QuotaLimits
from tests.imap.client import Client, connected, fill, services
from tests.one_node import HookedMail, one_node

LIMITS = {"alice": QuotaLimits(storage_bytes=4096, messages=3), "bob": QuotaLimits(messages=10)}


def quotas(store: Store) -> Quotas:
    return Quotas(store.usage, lambda user: LIMITS.get(user, QuotaLimits()))


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
