from __future__ import annotations

import http.client
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from replicator.config import LimitsConfig
from replicator.http import server as server_module
from replicator.http.server import BODY_S, HANDLER_S, HEAD_BYTES_MAX, HttpServer
from replicator.http.services import HttpServices
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.runtime.metrics import RefusalMetrics
from replicator.users import UserDirectory
from tests.http.conversation import conversation
from tests.http.fixed_jobs import FixedJobs
from tests.http.fixed_report import FixedReport
from tests.one_node import HookedMail, Names, one_node

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /api/v1/users/alice/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: message/rfc822\r\n"


async def test_connection_is_kept_and_answers_in_order(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        await talk.stream.send_all(HEALTH + POST + b"Content-Length: 3\r\n\r\na\r\n" + HEALTH)
        assert [(await talk.answer()).status for _ in range(3)] == [200, 201, 200]


async def test_request_may_arrive_byte_by_byte(services: HttpServices, mail: HookedMail) -> None:
    async with conversation(HttpServer(services)) as talk:
        for byte in POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n":
            await talk.stream.send_all(bytes([byte]))
        assert (await talk.answer()).status == 201
    assert await mail.bodies("alice") == [b"abc"]


async def test_every_answer_has_date_and_security_headers(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        answer = await talk.ask(HEALTH)
    assert answer.headers["date"] == "Sun, 06 Nov 1994 08:49:37 GMT"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "connection" not in answer.headers


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # a TLS hello
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (HEALTH[:-2] + b"Authorization: Bearer a\r\nauthorization: Bearer a\r\n\r\n", 400),
        (HEALTH[:-2] + b"Origin: http://localhost\r\nOrigin: https://evil.example\r\n\r\n", 400),
        (HEALTH[:-2] + b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Site: none\r\n\r\n", 400),
        (POST + b"Content-Type: text/plain\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * HEAD_BYTES_MAX, 431),
        (b"a" * (HEAD_BYTES_MAX + 1), 431),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"CONNECT localhost:25 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
async def test_hostile_requests_end_the_connection_with_one_problem(
    services: HttpServices, request_bytes: bytes, status: int
) -> None:
    async with conversation(HttpServer(services)) as talk:
        answer = await talk.ask(request_bytes)
        assert (answer.status, answer.json["status"]) == (status, status)
        assert answer.headers["connection"] == "close"
        assert await talk.rest() == b""


@given(data=st.binary(max_size=200), head=st.sampled_from([b"", HEALTH, HEALTH[:-2], POST, POST + b"\r\n"]))
def test_any_bytes_are_answered_or_refused(data: bytes, head: bytes) -> None:
    async def scenario() -> None:
        async with one_node(Path(directory)) as mail:
            report, tasks = FixedReport(), FixedJobs().tasks()
            users, registry = Names("alice"), CollectorRegistry()
            oversight = UserDirectory(Path(directory))
            services = HttpServices(
                "dc1",
                mail,
                report,
                users,
                registry,
                report,
                report,
                tasks,
                mail.stories(),
                oversight,
                MESSAGE_IDS,
                mail.tracer(),
            )
            await survive(services)

    async def survive(services: HttpServices) -> None:
        async with conversation(HttpServer(services)) as talk:
            await talk.stream.send_all(head + data)
            assert isinstance(talk.stream, trio.StapledStream)
            await talk.stream.send_eof()
            answer = await talk.rest()
            assert answer.startswith(b"HTTP/1.1 ") or not answer

    with TemporaryDirectory() as directory:
        trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_large_body_is_refused_and_the_client_learns_why(
    services: HttpServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "BODY_BYTES_MAX", 1 << 20)
    async with conversation(HttpServer(services)) as talk:
        answer = await talk.ask(POST + b"Content-Length: 3145728\r\n\r\n" + bytes(3 << 20))
        assert (answer.status, "1 MiB" in str(answer.json["detail"])) == (413, True)


async def test_large_json_is_refused_before_the_event_loop_reads_it(services: HttpServices) -> None:
    body = b'{"repair": [' + b"[]," * (2 << 20) + b"[]]}"
    head = b"POST /api/v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with conversation(HttpServer(services)) as talk:
        answer = await talk.ask(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert (answer.status, "4 MiB" in str(answer.json["detail"])) == (413, True)


async def test_expect_header_gets_a_continue(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        await talk.stream.send_all(POST + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n")
        assert (await talk.stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        assert (await talk.ask(b"x")).status == 201


async def test_expect_header_for_an_unknown_path_is_refused_at_once(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        refused = POST.replace(b"/messages", b"/nothing") + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        assert (await talk.ask(refused)).status == 404


async def test_client_may_finish_sending_a_refused_body(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        refused = POST.replace(b"/messages", b"/nothing") + b"Content-Length: 1000\r\n\r\n"
        assert (await talk.ask(refused)).status == 404
        await trio.testing.wait_all_tasks_blocked()
        await talk.stream.send_all(bytes(1000))


async def test_silence_ends_a_connection(services: HttpServices, autojump_clock: trio.testing.MockClock) -> None:
    started = autojump_clock.current_time()
    async with conversation(HttpServer(services)) as talk:
        await talk.stream.send_all(HEALTH[:-1])
        assert await talk.rest() == b""
    head_s = services.limits.http_head_seconds
    assert head_s <= autojump_clock.current_time() - started < head_s + 10


async def test_slow_body_gets_a_timeout_answer(services: HttpServices, autojump_clock: trio.testing.MockClock) -> None:
    started = autojump_clock.current_time()
    async with conversation(HttpServer(services)) as talk:
        assert (await talk.ask(POST + b"Content-Length: 2\r\n\r\nx")).status == 408
        assert autojump_clock.current_time() - started == BODY_S


async def test_handler_that_hangs_is_given_up(
    services: HttpServices, mail: HookedMail, autojump_clock: trio.testing.MockClock
) -> None:
    async def hang(_user: str) -> None:
        await trio.sleep_forever()

    mail.before_change = hang
    started = autojump_clock.current_time()
    async with conversation(HttpServer(services)) as talk:
        answer = await talk.ask(POST + b"Content-Length: 1\r\n\r\nx")
        assert (answer.status, autojump_clock.current_time() - started) == (503, HANDLER_S)
        assert (await talk.ask(HEALTH)).status == 200


async def test_silent_connections_make_room_for_requests(services: HttpServices) -> None:
    refusals = RefusalMetrics(services.registry)
    services = replace(services, limits=LimitsConfig(http_heads_per_address=3), refusals=refusals)
    server = HttpServer(services)
    async with trio.open_nursery() as nursery:
        silent = []
        for _ in range(10):
            client, served = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve, served)
            await client.send_all(b"GET /hea")
            await trio.testing.wait_all_tasks_blocked()
            silent.append(client)
        assert [await stream.receive_some() for stream in silent[:7]] == [b""] * 7
        async with conversation(server) as talk:
            assert (await talk.ask(HEALTH)).status == 200
        labels = {"door": "http", "limit": "http_heads_per_address"}
        assert services.registry.get_sample_value("replicator_refusals_total", labels) == 8
        nursery.cancel_scope.cancel()


async def test_requests_in_work_are_never_dropped(
    services: HttpServices, mail: HookedMail, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()

    async def hang(_user: str) -> None:
        await trio.sleep_forever()

    mail.before_change = hang
    server = HttpServer(replace(services, limits=LimitsConfig(http_connections=2)))
    async with conversation(server) as first, conversation(server) as second:
        for talk in (first, second):
            await talk.stream.send_all(POST + b"Content-Length: 1\r\n\r\nx")
        await trio.testing.wait_all_tasks_blocked()
        async with conversation(server) as third:
            answer = await third.answer()
            assert answer.status == 503
            assert "2 requests are in work already" in str(answer.json["detail"])
        assert autojump_clock.current_time() == began


async def test_http_1_0_is_answered_and_closed(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        assert (await talk.ask(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")).status == 200
        assert await talk.rest() == b""


def _use_standard_client(port: int) -> list[int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    statuses = []
    for method, path, body in [
        ("GET", "/healthz", None),
        ("POST", "/api/v1/users/alice/messages", b"x" * 1_000_000),
        ("POST", "/api/v1/users/eve/messages", b"x" * 10),
        ("POST", "/nowhere", b"x" * 5_000_000),
        ("GET", "/api/v1/status", None),
    ]:
        connection.request(method, path, body, {"Content-Type": "message/rfc822"})
        response = connection.getresponse()
        statuses.append(response.status)
        json.loads(response.read())
    connection.close()
    return statuses


async def test_standard_library_client_is_served_over_loopback(services: HttpServices) -> None:
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, HttpServer(services).serve, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        port = listeners[0].socket.getsockname()[1]
        statuses = await trio.to_thread.run_sync(_use_standard_client, port)
        nursery.cancel_scope.cancel()
    assert statuses == [200, 201, 404, 404, 200]
