"""Routes of sessions: whom they list and end, and how they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio

from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from replicator.runtime.sessions import Facts, OpenSession
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import HookedMail
from tests.open_sessions import Holder

PATH = "/api/v1/sessions"


@pytest.fixture
async def opened(services: HttpServices, nursery: trio.Nursery) -> dict[str, OpenSession]:
    """Sessions by the last number of their address."""
    holder = Holder(nursery, services.sessions.own)
    return {
        str(number): await holder.open(Facts(user, "IDLE", 5, "INBOX", tls=True), f"192.0.2.{number}")
        for number, user in enumerate(("alice", "bob", "alice", None), 1)
    }


@pytest.fixture
async def client(services: HttpServices) -> AsyncIterator[Conversation]:
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def ask(client: Conversation, query: str, method: str = "GET", *fields: str) -> Answer:
    head = "\r\n".join([f"{method} {PATH}{query} HTTP/1.1", "Host: localhost", *fields])
    return await client.ask(f"{head}\r\n\r\n".encode(), method.encode())


def addresses(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.json
    return [str(one["address"])[-1] for one in cast("list[dict[str, object]]", answer.json)]


async def test_sessions_are_listed(client: Conversation, opened: dict[str, OpenSession]) -> None:
    assert addresses(await ask(client, "")) == [*opened]
    assert addresses(await ask(client, "?user=Alice")) == ["1", "3"]
    assert addresses(await ask(client, "?address=192.0.2.2")) == ["2"]
    assert addresses(await ask(client, "?address=192.0.2.0/30")) == ["1", "2", "3"]
    assert addresses(await ask(client, "?user=nobody")) == []
    [one] = cast("list[dict[str, object]]", (await ask(client, "?user=bob")).json)
    facts = {"user": "bob", "doing": "IDLE", "doing_since_ms": 5, "mailbox": "INBOX", "tls": True}
    assert one.items() >= {**facts, "protocol": "imap", "process": "core", "address": "192.0.2.2"}.items()


@pytest.mark.parametrize(
    ("query", "ended"),
    [
        ("?user=alice", ["1", "3"]),
        ("?user=alice&address=192.0.2.3", ["3"]),
        ("?address=192.0.2.0/24", ["1", "2", "3", "4"]),
        ("?user=bob&address=192.0.2.3", []),
        ("?id=1.999999", []),
    ],
)
async def test_what_has_all_that_is_named_is_ended(
    client: Conversation, opened: dict[str, OpenSession], query: str, ended: list[str]
) -> None:
    assert addresses(await ask(client, query, "DELETE")) == ended
    assert [number for number, session in opened.items() if session.was_ended] == ended


async def test_one_session_is_ended_by_its_id(client: Conversation, opened: dict[str, OpenSession]) -> None:
    [bob] = cast("list[dict[str, object]]", (await ask(client, "?user=bob")).json)
    assert addresses(await ask(client, f"?id={bob['id']}", "DELETE")) == ["2"]
    assert [number for number, session in opened.items() if session.was_ended] == ["2"]


@pytest.mark.parametrize("query", ["", "?address=mars", "?address=192.0.2.0/99", "?name=alice"])
async def test_nothing_is_ended_by_a_query_that_makes_no_sense(
    client: Conversation, opened: dict[str, OpenSession], query: str
) -> None:
    assert (await ask(client, query, "DELETE")).status == 400
    assert not any(session.was_ended for session in opened.values())


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_tokens_for_reading_are_not_told_where_users_are(
    services: HttpServices, mail: HookedMail, method: str
) -> None:
    file = mail.store.path.with_name("http.tokens")
    secrets = {role: add_token(file, role.value, role) for role in (Role.READ, Role.OPERATE)}
    async with conversation(HttpServer(services, Access(Tokens(file)))) as talk:
        for role, status in ((Role.READ, 403), (Role.OPERATE, 200)):
            token = f"Authorization: Bearer {secrets[role]}"
            assert (await ask(talk, "?user=alice", method, token)).status == status


async def test_drained_node_says_so_until_the_drain_ends(client: Conversation, services: HttpServices) -> None:
    async def drain(method: str) -> dict[str, object]:
        answer = await client.ask(
            f"{method} /api/v1/drain HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), method.encode()
        )
        assert answer.status == 200
        return answer.json

    since_ms = (await drain("POST"))["since_ms"]
    assert since_ms is not None
    assert (await drain("POST"))["since_ms"] == since_ms, "a second one changes nothing"
    assert "`replicator drain --undo`" in services.drain.problems()[0]
    assert await drain("DELETE") == await drain("DELETE") == {"since_ms": None}
    assert services.drain.problems() == ()
