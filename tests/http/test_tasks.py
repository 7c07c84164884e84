from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from trio.testing import MockClock

from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tasks import WAIT_S
from tests.http.conversation import Answer, Conversation, conversation
from tests.http.fixed_checks import FOUND, FixedChecks


@pytest.fixture
def checks() -> FixedChecks:
    return FixedChecks()


@pytest.fixture
async def client(services: HttpServices, checks: FixedChecks) -> AsyncIterator[Conversation]:
    async with conversation(HttpServer(replace(services, checks=checks))) as talk:
        yield talk


async def ask(client: Conversation, method: str, target: str, body: str = "", kind: str = "application/json") -> Answer:
    about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
    return await client.ask(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{about}\r\n{body}".encode())


async def test_a_check_is_started_followed_and_told(client: Conversation, checks: FixedChecks) -> None:
    assert (await ask(client, "GET", "/api/v1/check")).status == 404
    begun = await ask(client, "POST", "/api/v1/check", '{"repair": true, "rate": 500}')
    assert (begun.status, begun.json["state"], begun.json["repair"], begun.json["rate"]) == (202, "running", True, 500)
    checks.end("check", "done", FOUND)
    told = await ask(client, "GET", "/api/v1/check?wait=true")
    assert (told.status, told.json["state"], told.json["damage"]) == (200, "done", {"by_uid": 1})
    assert told.json["findings"] == [
        {
            "kind": "by_uid", "user": "alice", "folder": "INBOX", "uid": 3, "guid": "ab" * 16, "what": "is missing",
            "done": None,
        }
    ]  # fmt: skip


async def test_without_options_a_check_only_looks_and_a_scrub_mends(client: Conversation, checks: FixedChecks) -> None:
    assert (await ask(client, "POST", "/api/v1/check")).json["repair"] is False
    checks.end("check", "done")
    assert (await ask(client, "POST", "/api/v1/scrub", "{}")).json["repair"] is True


@pytest.mark.parametrize("second", ["check", "scrub"])
async def test_one_runs_at_a_time(client: Conversation, second: str) -> None:
    assert (await ask(client, "POST", "/api/v1/check")).status == 202
    assert (await ask(client, "POST", f"/api/v1/{second}")).status == 409


async def test_waiting_ends_after_a_while(client: Conversation, checks: FixedChecks, autojump_clock: MockClock) -> None:
    await ask(client, "POST", "/api/v1/check")
    before = autojump_clock.current_time()
    assert (await ask(client, "GET", "/api/v1/check?wait=true")).json["state"] == "running"
    assert autojump_clock.current_time() - before == WAIT_S
    assert not checks.ended.is_set()


async def test_what_is_cancelled_says_so(client: Conversation) -> None:
    assert (await ask(client, "DELETE", "/api/v1/scrub")).status == 404
    await ask(client, "POST", "/api/v1/scrub")
    assert (await ask(client, "DELETE", "/api/v1/scrub")).json["state"] == "cancelled"
    assert (await ask(client, "DELETE", "/api/v1/scrub")).json["state"] == "cancelled"


@pytest.mark.parametrize(
    "body", ["{", "[]", '{"repare": true}', '{"repair": 1}', '{"rate": 0}', '{"rate": true}', '{"rate": 1.5}', "\xff"]
)
async def test_options_that_make_no_sense_are_refused(client: Conversation, checks: FixedChecks, body: str) -> None:
    assert (await ask(client, "POST", "/api/v1/check", body)).status == 400
    assert not checks.tasks


async def test_no_web_page_can_start_one(client: Conversation, checks: FixedChecks) -> None:
    assert (await ask(client, "POST", "/api/v1/check", "", "text/plain")).status == 415
    assert not checks.tasks
