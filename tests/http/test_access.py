"""What a listener lets whom do."""

from __future__ import annotations

import pytest

from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from tests.http.conversation import Answer, conversation


async def ask(services: HttpServices, access: Access, request: str, *headers: str, host: str = "localhost") -> Answer:
    async with conversation(HttpServer(services, access)) as talk:
        lines = "\r\n".join([f"{request} HTTP/1.1", f"Host: {host}", *headers, "", ""])
        return await talk.ask(lines.encode())


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
