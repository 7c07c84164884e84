"""Rights of clients at each kind of listener."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from replicator.config import LimitsConfig
from replicator.http.access import Access
from replicator.http.api import ROUTES
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from tests.http.conversation import Answer, conversation
from tests.http.fixed_report import FixedReport


async def ask(services: HttpServices, access: Access, request: str, *headers: str, host: str = "localhost") -> Answer:
    async with conversation(HttpServer(services, access)) as talk:
        lines = "\r\n".join([f"{request} HTTP/1.1", f"Host: {host}", *headers, "", ""])
        return await talk.ask(lines.encode(), request.partition(" ")[0].encode())


FOREIGN_PAGES = [
    ("Origin: https://evil.example",),
    ("Origin: null",),
    ("Origin: http://localhost:3000",),
    ("Sec-Fetch-Site: cross-site",),
    ("Sec-Fetch-Site: same-site",),
    ("Origin: http://localhost", "Sec-Fetch-Site: cross-site"),
]


@pytest.mark.parametrize("headers", FOREIGN_PAGES)
@pytest.mark.parametrize("request_line", ["POST /api/v1/checkpoint", "GET /api/v1/status", "GET /metrics"])
async def test_page_of_another_site_gets_nothing(
    services: HttpServices, request_line: str, headers: tuple[str, ...]
) -> None:
    answer = await ask(services, Access(), request_line, *headers)
    assert (answer.status, "web page" in str(answer.json["detail"])) == (403, True)


@pytest.mark.parametrize("headers", FOREIGN_PAGES)
async def test_page_of_another_site_may_ask_for_health(services: HttpServices, headers: tuple[str, ...]) -> None:
    assert (await ask(services, Access(), "GET /healthz", *headers)).status == 200


@pytest.mark.parametrize(
    "headers", [(), ("Sec-Fetch-Site: none",), ("Origin: http://LOCALHOST:1080", "Sec-Fetch-Site: same-origin")]
)
async def test_programs_and_the_address_bar_are_served(services: HttpServices, headers: tuple[str, ...]) -> None:
    answer = await ask(services, Access(), "POST /api/v1/checkpoint", *headers, host="localhost:1080")
    assert answer.status == 200


async def test_own_socket_has_no_name_to_check(services: HttpServices) -> None:
    assert (await ask(services, Access(), "GET /api/v1/status", host="dc1")).status == 421
    assert (await ask(services, Access(by_own_socket=True), "GET /api/v1/status", host="dc1")).status == 200


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(Tokens(tmp_path / "http.tokens"))


async def test_without_a_token_there_is_health_and_the_empty_page_and_nothing_else(
    services: HttpServices, report: FixedReport, access: Access
) -> None:
    report.reasons = ["the disk is full"]
    healthy = await ask(services, access, "GET /healthz", host="dc1.example.org")
    assert (healthy.status, healthy.json) == (503, {"sid": "dc1", "healthy": False})
    for route in ROUTES:
        if route.path not in {"/healthz", "/", "/page/{name}"}:
            path = route.path.replace("{user}", "alice").replace("{name}", "INBOX")
            path += "?" * bool(route.needed) + "&".join(f"{name}=Archive" for name in sorted(route.needed))
            content = [f"Content-Type: {route.body_type}", "Content-Length: 2"] if route.body_type else []
            refused = await ask(services, access, f"{route.method} {path}", *content)
            assert (route.path, refused.status) == (route.path, 401)
            assert refused.headers["www-authenticate"] == 'Bearer realm="replicator"'


async def test_strangers_who_do_not_read_their_answers_make_room(services: HttpServices, access: Access) -> None:
    server = HttpServer(replace(services, limits=LimitsConfig(http_connections=3)), access)
    async with trio.open_nursery() as nursery:
        for path in ("/healthz", "/metrics", "/nothing"):
            client, served = trio.testing.lockstep_stream_pair()
            nursery.start_soon(server.serve, served)
            await client.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await trio.testing.wait_all_tasks_blocked()
        async with conversation(server) as talk:
            assert (await talk.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == 200
        nursery.cancel_scope.cancel()


async def test_role_decides_what_a_token_is_good_for(services: HttpServices, access: Access, tmp_path: Path) -> None:
    reader = add_token(tmp_path / "http.tokens", "prometheus", Role.READ)
    operator = add_token(tmp_path / "http.tokens", "laptop", Role.OPERATE)
    for secret, request, status in (
        (reader, "GET /metrics", 200),
        (reader, "HEAD /api/v1/status", 200),
        (reader, "GET /healthz", 200),
        (reader, "POST /api/v1/checkpoint", 403),
        (reader, "PUT /api/v1/users/alice/folders/Archive", 403),
        (reader, "DELETE /api/v1/users/alice/folders/Archive", 403),
        (reader, "GET /api/v1/users/alice/folders", 200),
        (reader, "GET /api/v1/sessions", 403),
        (reader, "DELETE /api/v1/check", 403),
        (operator, "GET /metrics", 200),
        (operator, "POST /api/v1/checkpoint", 200),
        (operator, "PUT /api/v1/users/alice/folders/Archive", 201),
        (operator[:-1], "GET /metrics", 401),
        ("", "GET /metrics", 401),
        ("x", "GET /healthz", 401),
    ):
        answer = await ask(services, access, request, f"Authorization: Bearer {secret}", host="dc1.example.org")
        assert (secret, request, answer.status) == (secret, request, status)
    answer = await ask(services, access, "POST /api/v1/checkpoint", f"Authorization: bearer  {reader}")
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
    for other in (f"Basic {reader}", reader, "Bearer"):
        assert (await ask(services, access, "GET /metrics", f"Authorization: {other}")).status == 401


async def test_page_of_another_site_gets_nothing_by_a_token_either(
    services: HttpServices, access: Access, tmp_path: Path
) -> None:
    secret = add_token(tmp_path / "http.tokens", "laptop", Role.OPERATE)
    page = (f"Authorization: Bearer {secret}", "Sec-Fetch-Site: cross-site")
    assert (await ask(services, access, "GET /metrics", *page)).status == 403
