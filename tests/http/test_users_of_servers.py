"""Requests about users whom a program of the operator's knows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.user_sources import users_of_server
from replicator.users import ExternalDirectory
from tests.http.conversation import Conversation, conversation
from tests.user_sources.endpoint import Endpoint, config_of, serving


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with serving() as server:
        yield server


@pytest.fixture
def users(server: Endpoint) -> ExternalDirectory:
    return users_of_server(config_of(server), lambda: 1_000, CollectorRegistry())


@pytest.fixture
async def client(services: HttpServices, users: ExternalDirectory) -> AsyncIterator[Conversation]:
    async with conversation(HttpServer(replace(services, users=users, oversight=users))) as talk:
        yield talk


async def post(client: Conversation, path: str, **document: object) -> tuple[int, str]:
    head, body = f"POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\n", b""
    if document:
        body = json.dumps(document).encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    answer = await client.ask(f"{head}\r\n".encode() + body, b"POST")
    return answer.status, answer.body.decode()


async def test_server_is_asked_anew_before_mail_is_purged(
    server: Endpoint, users: ExternalDirectory, client: Conversation
) -> None:
    """A user who has just come must lose no mail because the node has heard before that there was none."""
    for name in ("carol", "dave"):
        assert await users.ask(name) is None
    server.people["carol"] = "new"
    assert (await post(client, "/users/carol/purge"))[0] == 409
    server.says = 500, b""
    status, told = await post(client, "/users/dave/purge")
    assert (status, "the answer has the status 500" in told) == (503, True)


async def test_mail_is_that_of_the_user_of_an_address_that_nobody_has_asked_about(client: Conversation) -> None:
    status, body = await post(client, "/resync", user="Alice@Example.org")
    assert status == 202
    assert json.loads(body)["user"] == "alice"


@pytest.mark.parametrize("task", ["resync", "undelete"])
async def test_mail_of_an_unknown_address_is_not_taken_for_none(
    server: Endpoint, client: Conversation, task: str
) -> None:
    """While the server is down, nobody knows whose mail an address means."""
    server.says = 500, b""
    status, told = await post(client, f"/{task}", user="carol@example.org", mailbox="INBOX")
    assert (status, "does not answer" in told) == (503, True)


async def test_user_with_mail_here_is_meant_while_the_server_is_down(server: Endpoint, client: Conversation) -> None:
    server.says = 500, b""
    status, body = await post(client, "/resync", user="Alice")
    assert (status, json.loads(body)["user"]) == (202, "alice")
