"""The route that ends a node: when it does, and for whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import HookedMail


@dataclass
class Ending:
    is_managed: bool = False
    begun: list[str] = field(default_factory=list)

    def begin(self, why: str) -> None:
        self.begun.append(why)


async def stop(client: Conversation, *fields: str) -> Answer:
    head = "\r\n".join(["POST /api/v1/stop HTTP/1.1", "Host: localhost", *fields])
    return await client.ask(f"{head}\r\n\r\n".encode(), b"POST")


@pytest.mark.parametrize("managed", [False, True])
async def test_the_node_ends_and_says_who_may_start_it_anew(services: HttpServices, *, managed: bool) -> None:
    ending = Ending(managed)
    async with conversation(HttpServer(replace(services, ending=ending))) as talk:
        answer = await stop(talk)
        assert (answer.status, answer.json) == (202, {"sid": "dc1", "managed": managed})
        await trio.testing.wait_all_tasks_blocked()
        assert ending.begun == ["a request of an operator"]


async def test_the_node_does_not_end_before_the_client_has_the_answer(services: HttpServices) -> None:
    ending = Ending()
    client, served = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(replace(services, ending=ending)).serve, served)
        await client.send_all(b"POST /api/v1/stop HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()  # the server waits for its client to read
        assert ending.begun == []
        assert (await client.receive_some()).startswith(b"HTTP/1.1 202 ")
        await trio.testing.wait_all_tasks_blocked()
        assert ending.begun != []
        await client.aclose()


async def test_the_node_ends_for_a_client_that_has_gone(services: HttpServices) -> None:
    ending = Ending()
    client, served = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(replace(services, ending=ending)).serve, served)
        await client.send_all(b"POST /api/v1/stop HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.aclose()
    assert ending.begun != []


async def test_a_node_in_another_program_does_not_end(services: HttpServices) -> None:
    async with conversation(HttpServer(services)) as talk:
        assert (await stop(talk)).status == 501


@pytest.mark.parametrize("role", [Role.READ, Role.PROXY])
async def test_only_tokens_for_operating_end_the_node(services: HttpServices, mail: HookedMail, role: Role) -> None:
    file, ending = mail.store.path.with_name("http.tokens"), Ending()
    secrets = {one: add_token(file, one.value, one) for one in (role, Role.OPERATE)}
    async with conversation(HttpServer(replace(services, ending=ending), Access(Tokens(file)))) as talk:
        assert (await stop(talk, f"Authorization: Bearer {secrets[role]}")).status == 403
        assert (await stop(talk)).status == 401
        assert ending.begun == []
        assert (await stop(talk, f"Authorization: Bearer {secrets[Role.OPERATE]}")).status == 202
        await trio.testing.wait_all_tasks_blocked()
        assert ending.begun != []


async def test_a_page_of_another_site_does_not_end_the_node(services: HttpServices) -> None:
    ending = Ending()
    async with conversation(HttpServer(replace(services, ending=ending))) as talk:
        assert (await stop(talk, "Origin: http://example.org")).status == 403
        assert ending.begun == []
