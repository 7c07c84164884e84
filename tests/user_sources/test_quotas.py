"""Quotas of users whom a program of the operator's knows, at a node that has not asked about them before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.errors import QuotaExceededError, UsersUnavailableError
from replicator.mail.mailstore import INBOX, NewMessage
from replicator.replication.writes.quotas import Quotas
from replicator.store.store import Store
from replicator.user_sources import users_of_server
from replicator.users import QuotaLimits
from replicator.users.elsewhere.answers import AFTER_FAILURE_S, KNOWN_S
from tests.one_node import HookedMail, one_node
from tests.user_sources.endpoint import Endpoint, config_of, serving


@pytest.fixture
def server() -> Iterator[Endpoint]:
    """Yield an endpoint that gives alice more room than others have, and bob none of his own."""
    with serving() as server:
        yield server


@pytest.fixture
async def mail(server: Endpoint, tmp_path: Path) -> AsyncIterator[HookedMail]:
    default = QuotaLimits(storage_bytes=1)
    users = users_of_server(config_of(server), lambda: 1_000, CollectorRegistry(), quota=default)

    def quotas(store: Store) -> Quotas:
        return Quotas(store.usage, users.quota_limits)

    async with one_node(tmp_path, quotas=quotas) as mail:
        yield mail


async def store(mail: HookedMail, user: str) -> None:
    await mail.save(await mail.folder(user, INBOX), NewMessage(b"Subject: x\r\n\r\nx\r\n"))


async def test_mail_is_measured_by_the_quota_that_the_server_sets(mail: HookedMail) -> None:
    await store(mail, "alice")
    assert (await mail.quota("alice")).limits == QuotaLimits(1024**3, None)
    with pytest.raises(QuotaExceededError):
        await store(mail, "bob")


async def test_mail_waits_while_the_quota_is_unknown(
    server: Endpoint, mail: HookedMail, mock_clock: trio.testing.MockClock
) -> None:
    server.says = 500, b""
    with pytest.raises(UsersUnavailableError):
        await store(mail, "alice")
    with pytest.raises(UsersUnavailableError):
        await mail.check_quota("alice", 1, 1)
    server.says = None
    mock_clock.jump(AFTER_FAILURE_S)
    await store(mail, "alice")
    server.says = 500, b""
    mock_clock.jump(KNOWN_S / 2)
    await store(mail, "alice")
    mock_clock.jump(KNOWN_S)
    with pytest.raises(UsersUnavailableError):
        await store(mail, "alice")
