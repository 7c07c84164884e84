"""The stream of the node's overviews, in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import h11
import pytest
import trio
import trio.testing

from replicator.config import LimitsConfig
from replicator.errors import DatabaseFailedError
from replicator.http.access import Access
from replicator.http.page.events import BEAT_S, LOOK_S, STREAM_S
from replicator.http.server import HttpServer
from replicator.http.services import REST, HttpServices
from replicator.http.tokens import Role, Tokens, add_token, delete_token
from replicator.runtime.metrics import RefusalMetrics
from replicator.status import NodeStatus
from replicator.tasks import CheckOptions
from tests.http.conversation import Conversation, conversation
from tests.http.fixed_report import FixedReport

EVENTS = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n"


class Listener:
    """A client of the stream. `head` is there once something was read."""

    def __init__(self, talk: Conversation) -> None:
        self._stream = talk.stream
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
        self._http.send(h11.EndOfMessage())
        self._text = ""
        self.head: h11.Response | None = None

    async def next(self) -> tuple[str, dict[str, object]] | None:
        """Return the next event's name and document; None at the end of the stream."""
        while "\n\n" not in self._text:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some()))
            elif isinstance(event, h11.Response):
                self.head = event
            elif isinstance(event, h11.Data):
                self._text += event.data.decode()
            else:
                return None
        whole, _, self._text = self._text.partition("\n\n")
        name, data = whole.split("\n")
        return name.removeprefix("event: "), cast("dict[str, object]", json.loads(data.removeprefix("data: ")))

    async def status(self) -> dict[str, object]:
        event = await self.next()
        assert event is not None
        assert event[0] == "node"
        return cast("dict[str, object]", event[1]["status"])


async def listen(talk: Conversation, *headers: bytes) -> Listener:
    await talk.stream.send_all(EVENTS + b"".join(header + b"\r\n" for header in headers) + b"\r\n")
    return Listener(talk)


async def test_overview_comes_at_once_and_whenever_the_node_looks_different(
    services: HttpServices, report: FixedReport, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()
    report.reasons = ["the disk is full"]
    async with conversation(HttpServer(services)) as talk:
        listener = await listen(talk)
        event = await listener.next()
        assert event is not None
        assert (event[0], event[1]["reasons"], event[1]["task"]) == ("node", ["the disk is full"], None)
        assert cast("dict[str, object]", event[1]["status"])["sid"] == "dc1"
        assert autojump_clock.current_time() == began
        assert listener.head is not None
        headers = dict(listener.head.headers)
        assert (headers[b"content-type"], headers[b"cache-control"]) == (b"text/event-stream", b"no-store")
        report.log_entries += 1
        assert (await listener.status())["log_entries"] == report.log_entries
        assert autojump_clock.current_time() - began == LOOK_S


async def test_without_a_change_there_is_a_beat_which_has_the_time(
    services: HttpServices, report: FixedReport, autojump_clock: trio.testing.MockClock
) -> None:
    async with conversation(HttpServer(services)) as talk:
        listener = await listen(talk)
        await listener.status()
        began = autojump_clock.current_time()
        report.clock_ms += 1
        assert (await listener.status())["clock_ms"] == report.clock_ms
        assert autojump_clock.current_time() - began == BEAT_S


@pytest.mark.usefixtures("autojump_clock")
async def test_running_task_is_told(services: HttpServices) -> None:
    assert services.tasks.start(CheckOptions()) is not None
    async with conversation(HttpServer(services)) as talk:
        event = await (await listen(talk)).next()
    assert event is not None
    task = cast("dict[str, object]", event[1]["task"])
    assert (task["task"], task["state"], "findings" in task) == ("check", "running", False)


class Counting(FixedReport):
    """A report that counts how often it is asked for."""

    asked = 0

    async def node_status(self) -> NodeStatus:
        self.asked += 1
        return await super().node_status()


async def test_node_looks_at_itself_once_for_all_streams(
    services: HttpServices, autojump_clock: trio.testing.MockClock
) -> None:
    report = Counting()
    server = HttpServer(replace(services, status=report))
    async with conversation(server) as one, conversation(server) as other:
        for listener in [await listen(one), await listen(other)]:
            await listener.status()
        assert (report.asked, autojump_clock.current_time()) == (1, 0)


class Slow(FixedReport):
    """A report that takes two seconds to make, each with another figure."""

    async def node_status(self) -> NodeStatus:
        await trio.sleep(2)
        self.log_entries += 1
        return await super().node_status()


async def test_node_that_takes_long_to_look_at_itself_looks_less_often(
    services: HttpServices, autojump_clock: trio.testing.MockClock
) -> None:
    async with conversation(HttpServer(replace(services, status=Slow()))) as talk:
        listener = await listen(talk)
        seen = {int(cast("int", (await listener.status())["log_entries"])) for _ in range(9)}
        looks = len(seen)
        assert 2 <= looks <= autojump_clock.current_time() / (2 * REST) + 1


class Failing(FixedReport):
    """A report of a node whose database fails."""

    async def node_status(self) -> NodeStatus:
        raise DatabaseFailedError("disk I/O error")


async def test_failing_database_is_told_in_words(
    services: HttpServices, autojump_clock: trio.testing.MockClock
) -> None:
    async with conversation(HttpServer(replace(services, status=Failing()))) as talk:
        listener = await listen(talk)
        for _ in range(2):
            event = await listener.next()
            assert event is not None
            assert (event[0], "disk I/O error" in str(event[1]["detail"])) == ("problem", True)
        assert autojump_clock.current_time() == BEAT_S


async def test_stream_ends_after_a_while(services: HttpServices, autojump_clock: trio.testing.MockClock) -> None:
    async with conversation(HttpServer(services)) as talk:
        listener = await listen(talk)
        while await listener.next() is not None:
            pass
        assert STREAM_S <= autojump_clock.current_time() <= STREAM_S + BEAT_S


async def test_stream_ends_with_its_token(
    services: HttpServices, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "http.tokens"
    secret = add_token(file, "laptop", Role.READ)
    async with conversation(HttpServer(services, Access(Tokens(file)))) as talk:
        listener = await listen(talk, f"Authorization: Bearer {secret}".encode())
        await listener.status()
        await listener.status()
        delete_token(file, "laptop")
        assert await listener.next() is None
    assert autojump_clock.current_time() <= 3 * BEAT_S


async def test_streams_are_bounded_and_counted(services: HttpServices, autojump_clock: trio.testing.MockClock) -> None:
    services = replace(services, limits=LimitsConfig(http_streams=2), refusals=RefusalMetrics(services.registry))
    server = HttpServer(services)
    async with conversation(server) as one:
        await (await listen(one)).status()
        async with conversation(server) as other:
            await (await listen(other)).status()
            async with conversation(server) as third:
                refused = await third.ask(EVENTS + b"\r\n")
                assert (refused.status, "close some pages" in str(refused.json["detail"])) == (503, True)
                assert (await third.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == 200
        # The other client is gone, which the node finds when it sends it the next event.
        await trio.sleep(2 * BEAT_S)
        async with conversation(server) as fourth:
            await (await listen(fourth)).status()
    labels = {"door": "http", "limit": "http_streams"}
    assert services.registry.get_sample_value("replicator_refusals_total", labels) == 1
    assert autojump_clock.current_time() < STREAM_S


async def test_half_of_the_connections_are_left_to_others(services: HttpServices) -> None:
    server = HttpServer(replace(services, limits=LimitsConfig(http_connections=4)))
    async with conversation(server) as one, conversation(server) as other, conversation(server) as third:
        for talk in (one, other):
            await (await listen(talk)).status()
        assert (await third.ask(EVENTS + b"\r\n")).status == 503


async def test_node_that_stops_ends_its_streams(services: HttpServices) -> None:
    server, ended = HttpServer(services), trio.Event()
    client, served = trio.testing.memory_stream_pair()
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            await server.serve(served)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await client.send_all(EVENTS + b"\r\n")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200 ")
        scope.cancel()
        await ended.wait()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_head_of_the_stream_has_no_body(services: HttpServices, version: str) -> None:
    async with conversation(HttpServer(services)) as talk:
        await talk.stream.send_all(f"HEAD /api/v1/events HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await talk.rest()).partition(b"\r\n\r\n")
    assert (head.startswith(b"HTTP/1.1 200 "), body) == (True, b"")
