from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.http.access import Access
from replicator.http.message import ProblemError
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tasks.destinations import Destinations
from replicator.http.tokens import Role, Tokens, add_token
from tests.http.conversation import conversation
from tests.http.fixed_jobs import FixedJobs, running

ENDPOINT = "https://objects.example.org:443"
PLACES = Destinations(("/srv/inventories", "s3://bucket/inventories"), ENDPOINT)


@pytest.mark.parametrize(
    ("to", "endpoint"),
    [
        ("/srv/inventories", None),
        ("/srv/inventories/dc1/today", None),
        ("s3://bucket/inventories/dc1", None),
        ("s3://bucket/inventories", ENDPOINT),
    ],
)
def test_places_of_the_configuration_are_free(to: str, endpoint: str | None) -> None:
    PLACES.check(to, endpoint)


@pytest.mark.parametrize(
    ("to", "endpoint"),
    [
        ("/", None),
        ("/srv", None),
        ("/srv/inventories2", None),
        ("/srv/inventories/../other", None),
        ("/etc/cron.d", None),
        ("s3://bucket", None),
        ("s3://bucket/inventories2", None),
        ("s3://other/inventories", None),
        ("s3://bucket/inventories/dc1", "https://evil.example:443"),
    ],
)
def test_all_others_are_refused(to: str, endpoint: str | None) -> None:
    with pytest.raises(ProblemError, match="by a token"):
        PLACES.check(to, endpoint)


@pytest.mark.parametrize(("to", "status"), [("/srv/inventories/1", 202), ("/home/mail", 403)])
async def test_tokens_are_bound_and_the_own_socket_is_not(
    services: HttpServices, tmp_path: Path, to: str, status: int
) -> None:
    secret = add_token(tmp_path / "http.tokens", "laptop", Role.OPERATE)
    body = json.dumps({"to": to})
    request = (
        f"POST /api/v1/inventory HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    for access, expected in (
        (Access(Tokens(tmp_path / "http.tokens")), status),
        (Access(by_own_socket=True), 202),
        (Access(), 202),
    ):
        async with running(FixedJobs().tasks()) as tasks:
            bound = replace(services, tasks=tasks, destinations=PLACES)
            async with conversation(HttpServer(bound, access)) as talk:
                assert (await talk.ask(request)).status == expected
