"""Connections: who gets a place, for how long, and what operators see of a sync."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.dsync.conversation import peer
from replicator.dsync.conversation.remote_session import Settled
from replicator.dsync.door.server import COMMAND_S, SYNC_ENDS_S, DsyncServer, DsyncServices
from replicator.dsync.rules.tree import INBOX
from replicator.dsync.wire.items import ChangeType, Deletions, Mail, Mailbox, MailChange
from replicator.dsync.wire.values import encode_record
from replicator.dsync.wire.writer import END_OF_LIST, hello, line_of
from replicator.errors import UsersUnavailableError
from replicator.runtime.metrics import DoveadmMetrics, RefusalMetrics
from tests.dsync.memory_replica import MemoryReplica
from tests.one_node import Names

SECRET = b"the secret"
BEGIN = b"VERSION\tdoveadm-server\t1\t2\nPLAIN\t" + b64encode(b"\0doveadm\0" + SECRET) + b"\n\tu1\tdsync-server\t-uu1\n"
SYNC = hello() + f"H{encode_record(['vm', None, None, None, 'c'])}\n".encode()
"""A hello, and a handshake that wants a sync of the type `c`."""


def password(secret: bytes | OSError) -> Callable[[], Awaitable[bytes]]:
    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        if isinstance(secret, OSError):
            raise secret
        return secret

    return read


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def replica() -> MemoryReplica:
    replica = MemoryReplica()
    replica.create(INBOX, b"1" * 16)
    return replica


@pytest.fixture
def services(registry: CollectorRegistry, replica: MemoryReplica) -> DsyncServices:
    return DsyncServices(
        Names("u1", "u2"),
        lambda _: replica,
        password(SECRET),
        "zz-test",
        metrics=DoveadmMetrics(registry),
        limits=LimitsConfig(doveadm_connections=2),
        refusals=RefusalMetrics(registry),
    )


@asynccontextmanager
async def connected(server: DsyncServer) -> AsyncIterator[trio.abc.Stream]:
    client, stream = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, stream)
        yield client
        await client.aclose()


async def until(stream: trio.abc.Stream, end: bytes = b"") -> bytes:
    """Return what comes up to these bytes, or up to the end of the connection."""
    data = b""
    while not (end and data.endswith(end)) and (more := await stream.receive_some()):
        data += more
    return data


def count(registry: CollectorRegistry, result: str) -> float:
    return registry.get_sample_value("replicator_doveadm_syncs_total", {"result": result}) or 0.0


async def test_a_sync_is_listed_and_counted(services: DsyncServices, registry: CollectorRegistry) -> None:
    async with connected(DsyncServer(services)) as stream:
        await stream.send_all(BEGIN + SYNC)
        await until(stream, b"\t\n")
        [listed], _ = await services.sessions.page(0)
        assert (listed.protocol, listed.user, listed.doing) == ("doveadm", "u1", "sync")
        await stream.send_all(END_OF_LIST + line_of(Deletions()))
        told = await until(stream, b"D/\t%\n")
        assert told.startswith(b"NINBOX\ty\t" + b"31" * 16)
        await stream.send_all(line_of(Mailbox(b"9" * 16, 1, 1, 0, 1, 1)) + END_OF_LIST)
        assert (await until(stream)).endswith(b"\nF\x02\t\x02\t\n"), "it lacks the mailbox, so all is to be compared"
    assert count(registry, "done") == 1
    assert await services.sessions.page(0) == ([], None)


async def test_an_operator_can_end_a_sync(
    services: DsyncServices, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with connected(DsyncServer(services)) as stream:
        await stream.send_all(BEGIN + SYNC)
        await until(stream, b"\t\n")
        [listed], _ = await services.sessions.page(0)
        assert await services.sessions.end([listed.id]) == [listed.id]
        assert await until(stream) == b""
    assert 'sync result=cut user=u1 reason="an operator has ended it"' in caplog.messages
    assert count(registry, "cut") == 1


async def test_a_sync_that_is_cut_by_the_end_of_the_node_is_told(
    services: DsyncServices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client, stream = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(DsyncServer(services).serve, stream)
        await client.send_all(BEGIN + SYNC)
        await until(client, b"\t\n")
        nursery.cancel_scope.cancel()
    assert 'sync result=cut user=u1 reason="the node stops"' in caplog.messages


@pytest.mark.parametrize("sent", [b"", b"V", BEGIN[:60], BEGIN[:-1]])
async def test_there_is_a_deadline_for_the_command(
    services: DsyncServices, autojump_clock: trio.testing.MockClock, sent: bytes
) -> None:
    async with connected(DsyncServer(services)) as stream:
        began = trio.current_time()
        await stream.send_all(sent)
        await until(stream)
        assert trio.current_time() - began == pytest.approx(COMMAND_S)
    assert autojump_clock.current_time() > 0


GUID = "ab" * 16
IN_A_MAIL = b"".join(
    [
        *(END_OF_LIST, line_of(Deletions()), line_of(Mailbox(b"1" * 16, 1_600_000_000, 2, 1, 1, 5))),
        *(END_OF_LIST, line_of(MailChange(ChangeType.SAVE, 1, GUID, 4)), END_OF_LIST, END_OF_LIST),
        *(line_of(Mail(GUID, 1, 1, 1)), b"Subject: half"),
    ]
)
"""What follows up to the middle of a mail: no folders, and INBOX with that mail alone."""


@pytest.mark.parametrize("more", [b"", SYNC, SYNC + END_OF_LIST, SYNC + IN_A_MAIL])
async def test_a_silent_master_is_given_up(
    services: DsyncServices, registry: CollectorRegistry, autojump_clock: trio.testing.MockClock, more: bytes
) -> None:
    async with connected(DsyncServer(services)) as stream:
        await stream.send_all(BEGIN + more)
        await until(stream)
    assert autojump_clock.current_time() >= peer.IDLE_S
    assert count(registry, "cut") == 1


async def test_a_sync_waits_a_moment_for_another_one_of_the_user(
    services: DsyncServices, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(DsyncServer(services)) as stream:
        with services.syncing.held("u1"):
            await stream.send_all(BEGIN + SYNC)
            await trio.sleep(SYNC_ENDS_S / 2)
        assert b"\nVERSION\tdsync" in await until(stream, b"\t\n"), "it begins then"
    assert autojump_clock.current_time() < SYNC_ENDS_S


async def test_a_sync_is_refused_while_another_one_of_the_user_goes_on(
    services: DsyncServices, registry: CollectorRegistry, autojump_clock: trio.testing.MockClock
) -> None:
    with services.syncing.held("u1"):
        async with connected(DsyncServer(services)) as stream:
            await stream.send_all(BEGIN)
            assert (await until(stream)).endswith(b"\n-TEMPFAIL\n")
    assert count(registry, "refused") == 1
    assert autojump_clock.current_time() == pytest.approx(SYNC_ENDS_S)


async def test_places_are_limited(services: DsyncServices, registry: CollectorRegistry) -> None:
    server = DsyncServer(services)
    async with connected(server) as stranger, connected(server) as syncing:
        await syncing.send_all(BEGIN + SYNC)
        await until(syncing, b"\t\n")
        async with connected(server) as third:
            await until(stranger)
            await third.send_all(BEGIN.replace(b"u1", b"u2") + SYNC)
            await until(third, b"\t\n")
            async with connected(server) as fourth:
                assert await until(fourth) == b"", "two syncs run"
            assert await services.sessions.page(0) != ([], None)
    labels = {"door": "doveadm", "limit": "doveadm_connections"}
    assert registry.get_sample_value("replicator_refusals_total", labels) == 2


@pytest.mark.parametrize("secret", [b"", PermissionError(13, "denied")])
async def test_without_a_password_nobody_gets_in(
    services: DsyncServices, registry: CollectorRegistry, secret: bytes | OSError
) -> None:
    async with connected(DsyncServer(replace(services, password=password(secret)))) as stream:
        await stream.send_all(BEGIN)
        assert await until(stream) == b"-\n-\n"
    assert count(registry, "refused") == 1


async def test_users_may_be_unknown_for_now(services: DsyncServices, registry: CollectorRegistry) -> None:
    class Unknown:
        def name_meant(self, name: str) -> str:
            return name

        async def ask(self, name: str) -> str | None:
            await trio.lowlevel.checkpoint()
            raise UsersUnavailableError(f"whether there is a {name} is not known")

    async with connected(DsyncServer(replace(services, users=Unknown()))) as stream:
        await stream.send_all(BEGIN)
        assert (await until(stream)).endswith(b"\n-TEMPFAIL\n")
    assert count(registry, "refused") == 1


async def test_nonsense_is_told_and_counted(services: DsyncServices, registry: CollectorRegistry) -> None:
    async with connected(DsyncServer(services)) as stream:
        await stream.send_all(BEGIN + SYNC + b"Cx\n")
        assert b"\nFthe peer sent a change of an unknown type" in await until(stream)
    assert count(registry, "failed") == 1


async def test_a_storage_without_guids_is_refused(services: DsyncServices, registry: CollectorRegistry) -> None:
    without = Mailbox(b"1" * 16, 1, 1, 0, 1, 1, have_save_guids=False)
    async with connected(DsyncServer(services)) as stream:
        await stream.send_all(BEGIN + SYNC + END_OF_LIST + line_of(Deletions()) + line_of(without) + END_OF_LIST)
        assert b"\nFthe master's storage keeps no GUIDs" in await until(stream)
    assert count(registry, "failed") == 1


def test_what_is_settled_of_a_user_says_nothing_of_a_copied_account() -> None:
    settled, numbers = Settled(), Mailbox(b"\x0a" * 16, 1, 2, 1, 1, 5)
    settled.note("u1", "vm 127.0.0.1", numbers, numbers)
    assert settled.has("u1", "vm 127.0.0.1", numbers, numbers)
    assert not settled.has("u2", "vm 127.0.0.1", numbers, numbers)
    assert not settled.has("u1", "vm 127.0.0.2", numbers, numbers)
