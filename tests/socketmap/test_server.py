"""The door at which MTAs ask for recipients."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.runtime.metrics import RefusalMetrics, SocketmapMetrics
from replicator.socketmap import SocketmapServer, SocketmapServices
from replicator.socketmap.netstrings import BYTES_MAX, NetstringError, NetstringReader, netstring
from replicator.users import Recipients, Site, UserDirectory

LIMITS = LimitsConfig(socketmap_connections=2, socketmap_idle_seconds=10)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def services(tmp_path: Path, registry: CollectorRegistry) -> SocketmapServices:
    (tmp_path / "users").write_text("alice:*:cluster=east\nbob@example.org:*:cluster=west\n")
    (tmp_path / "aliases").write_text("info@example.org alice\n@example.net alice\nfar boss@elsewhere.example\n")
    users = UserDirectory(tmp_path / "users", site=Site("east", has_others=True))
    recipients = Recipients(users, tmp_path / "aliases")
    refusals, metrics = RefusalMetrics(registry), SocketmapMetrics(registry)
    return SocketmapServices(recipients, limits=LIMITS, refusals=refusals, metrics=metrics)


@asynccontextmanager
async def connected(server: SocketmapServer) -> AsyncIterator[trio.abc.Stream]:
    near, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery, near:
        nursery.start_soon(server.serve, far, "192.0.2.1")
        await trio.testing.wait_all_tasks_blocked()
        yield near
        nursery.cancel_scope.cancel()


async def ask(stream: trio.abc.Stream, question: str) -> str:
    await stream.send_all(netstring(question))
    answer = bytes(await stream.receive_some())
    reader = NetstringReader()
    reader.add(answer)
    found = reader.next()
    assert found is not None
    return found.decode()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("recipient alice", "OK alice"),
        ("recipient Alice+x@Example.org", "OK Alice+x@Example.org"),
        ("recipient info@example.org", "OK info@example.org"),
        ("recipient anybody@example.net", "OK anybody@example.net"),
        ("recipient @example.net", "NOTFOUND "),
        ("recipient nobody@example.org", "NOTFOUND "),
        ("recipient far@example.org", "NOTFOUND "),
        ("recipient bob@example.org", "OK bob@example.org"),  # in another cluster
        ("recipient ", "NOTFOUND "),
        ("recipient alice\r\nbob", "NOTFOUND "),
        ("other alice", "PERM the only map here is recipient"),
        ("recipient", "PERM the only map here is recipient"),
        ("", "PERM the only map here is recipient"),
    ],
)
async def test_questions_are_answered(
    services: SocketmapServices, registry: CollectorRegistry, question: str, answer: str
) -> None:
    async with connected(SocketmapServer(services)) as stream:
        assert await ask(stream, question) == answer
        assert await ask(stream, "recipient alice") == "OK alice"
    name, word = "replicator_socketmap_answers_total", answer.partition(" ")[0]
    assert registry.get_sample_value(name, {"answer": word}) == (2 if word == "OK" else 1)


async def test_what_is_no_utf8_is_nobodys_address(services: SocketmapServices) -> None:
    async with connected(SocketmapServer(services)) as stream:
        await stream.send_all(b"12:recipient \xff\xff,15:recipient alice,")
        received = b""
        while received.count(b",") < 2:
            received += await stream.receive_some()
        assert received == b"9:NOTFOUND ,8:OK alice,"


async def test_nobody_is_refused_while_users_or_aliases_are_unknown(tmp_path: Path) -> None:
    users, aliases = tmp_path / "users", tmp_path / "aliases"
    server = SocketmapServer(SocketmapServices(Recipients(UserDirectory(users), aliases)))
    async with connected(server) as stream:
        assert await ask(stream, "recipient alice") == "TEMP the aliases cannot be read now; try again later"
        await trio.Path(aliases).write_text("info alice\n")
        assert (await ask(stream, "recipient alice")).startswith("TEMP the list of users cannot be read now")
        assert (await ask(stream, "recipient info")).startswith("TEMP ")
        await trio.Path(users).write_text("alice:*\n")
        assert await ask(stream, "recipient info") == "OK info"
        await trio.Path(users).write_text("bob:*\n")
        assert (await ask(stream, "recipient alice")).startswith("TEMP the list of users has just changed")


@pytest.mark.parametrize(
    "data", [b"x", b"01:a,", b"-1:", b"1:ab", b"1025:", b"99999:", b":,", b"1 :a,", b"GET / HTTP/1.1"]
)
async def test_what_is_no_question_ends_the_connection(services: SocketmapServices, data: bytes) -> None:
    async with connected(SocketmapServer(services)) as stream:
        await stream.send_all(data)
        assert await stream.receive_some() == b""


async def test_half_a_question_has_a_deadline(
    services: SocketmapServices, registry: CollectorRegistry, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(SocketmapServer(services)) as stream:
        began = trio.current_time()
        assert await ask(stream, "recipient alice") == "OK alice"
        for octet in b"99:r":
            await stream.send_all(bytes([octet]))
            await trio.sleep(3)
        assert await stream.receive_some() == b""
        assert trio.current_time() - began < 2 * LIMITS.socketmap_idle_seconds
    labels = {"door": "socketmap", "limit": "socketmap_idle_seconds"}
    assert registry.get_sample_value("replicator_refusals_total", labels) == 1


async def test_the_oldest_connection_goes_if_there_are_too_many(
    services: SocketmapServices, registry: CollectorRegistry
) -> None:
    server = SocketmapServer(services)
    async with connected(server) as first, connected(server) as second, connected(server) as third:
        assert await first.receive_some() == b""
        assert await ask(second, "recipient alice") == await ask(third, "recipient alice") == "OK alice"
        listed, _ = await services.sessions.page(0)
        assert [(one.protocol, one.address) for one in listed] == [("socketmap", "192.0.2.1")] * 2
    labels = {"door": "socketmap", "limit": "socketmap_connections"}
    assert registry.get_sample_value("replicator_refusals_total", labels) == 1


async def test_a_client_that_does_not_read_its_answers_is_given_up(
    services: SocketmapServices, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SocketmapServer(services).serve, far, "192.0.2.1")
            await near.send_all(netstring("recipient alice"))


@given(st.lists(st.text(max_size=40)), st.integers(1, 7))
def test_netstrings_come_out_as_they_went_in(texts: list[str], size: int) -> None:
    data, reader, found = b"".join(map(netstring, texts)), NetstringReader(), []
    for start in range(0, len(data), size):
        reader.add(data[start : start + size])
        while (one := reader.next()) is not None:
            found.append(one.decode())
    assert found == texts


@given(st.binary(max_size=30))
def test_any_octets_are_taken_or_refused_within_a_bound(data: bytes) -> None:
    reader = NetstringReader()
    reader.add(data)
    try:
        while (found := reader.next()) is not None:
            assert len(found) <= BYTES_MAX
    except NetstringError:
        pass
