"""The stream of commands between nodes: what it has, whom it refuses, and when it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol import commands as c
from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from replicator.tracing.folder_names import FolderNames
from replicator.tracing.tracer import BEAT_S, TRACES_MAX, Tracer, Wanted
from tests.http.conversation import Conversation, conversation
from tests.one_node import HookedMail, run_inline
from tests.tracing.fixed_links import NOW_MS, FixedLinks

TRACE = "GET /api/v1/trace{} HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def links() -> FixedLinks:
    return FixedLinks()


@pytest.fixture
def traced(services: HttpServices, mail: HookedMail, links: FixedLinks) -> HttpServices:
    async def names(user: str) -> dict[bytes, str]:
        return {folder.mailbox_id: folder.name for folder in await mail.folders(user)}

    return replace(services, tracer=Tracer(links, FolderNames(names), lambda: NOW_MS, run_inline))


@pytest.fixture
async def client(traced: HttpServices) -> AsyncIterator[Conversation]:
    async with conversation(HttpServer(traced)) as talk:
        yield talk


async def begin(client: Conversation, links: FixedLinks, query: str = "", fields: str = "") -> None:
    """Ask for a trace, and return once it has begun."""
    await client.stream.send_all(f"{TRACE.format(query)}{fields}\r\n".encode())
    await links.observed.wait()


async def refusal(client: Conversation, query: str, fields: str = "") -> tuple[int, str]:
    answer = await client.ask(f"{TRACE.format(query)}{fields}\r\n".encode())
    return answer.status, str(answer.json["detail"])


def events_of(body: bytes) -> list[tuple[str, dict[str, object]]]:
    """Return the events, without comments."""
    blocks = [block for block in body.decode().split("\n\n") if block and not block.startswith(":")]
    split = [block.removeprefix("event: ").split("\ndata: ") for block in blocks]
    return [(name, json.loads(data)) for name, data in split]


@pytest.mark.usefixtures("autojump_clock")
async def test_commands_are_told_until_the_link_ends(client: Conversation, mail: HookedMail, links: FixedLinks) -> None:
    inbox = await mail.folder("alice", "INBOX")
    await begin(client, links, "?peer=dc2")
    links.says(c.Mbox(1, "alice", "", inbox.mailbox_id, inbox.uidvalidity))
    links.says(c.Ping(), "r1", to=1)
    links.hears(c.Ping(), "r1")
    links.loses(0)
    answer = await client.answer()
    await links.left.wait()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    mbox, ping, end = events_of(answer.body)
    assert mbox[0] == ping[0] == "command"
    assert mbox[1]["places"] == [
        {"user": "alice", "mailbox": "INBOX", "mailbox_id": inbox.mailbox_id.hex(), "is_tree": False}
    ]
    assert (ping[1]["peer"], ping[1]["sent"], ping[1]["command"], ping[1]["tag"]) == ("dc2", False, "PING", "r1")
    assert end == ("end", {"why": "the link to dc2 has ended"})
    assert links.observer is None


async def test_links_are_left_alone_soon_after_the_client_has_gone(
    traced: HttpServices, links: FixedLinks, autojump_clock: trio.testing.MockClock
) -> None:
    async with conversation(HttpServer(traced)) as talk:
        await begin(talk, links)
        began = autojump_clock.current_time()
        await talk.stream.aclose()
        await links.left.wait()
        assert autojump_clock.current_time() - began <= 2 * BEAT_S


@pytest.mark.usefixtures("autojump_clock")
async def test_silence_is_a_comment(client: Conversation, links: FixedLinks) -> None:
    await begin(client, links, "?user=alice&command=save,ack")
    links.says(c.Ping(), "r1")
    await trio.sleep(2.5 * BEAT_S)
    received = bytes(await client.stream.receive_some())
    assert received.count(b":\n\n") >= 1
    assert b"PING" not in received


@pytest.mark.parametrize(
    ("query", "status", "detail"),
    [
        ("?peer=dc9", 404, "dc1 has no peer 'dc9'; its peers: dc2, dc3"),
        ("?command=SAV", 400, "did you mean SAVE?"),
        ("?command=SAVE,%1b", 400, "traces show no command '\\x1b'; the names are ACK, "),
        ("?command=FETHC", 400, "did you mean FETCH?"),
        ("?command=HELLO", 400, "traces show no command 'HELLO'"),
        ("?command=", 400, "command names none"),
        ("?command=%20,,", 400, "command names none"),
        ("?commands=SAVE", 400, "'commands' is unknown here"),
    ],
)
async def test_refusals(client: Conversation, query: str, status: int, detail: str) -> None:
    code, told = await refusal(client, query)
    assert code == status
    assert detail in told


async def test_peer_without_a_link(client: Conversation, links: FixedLinks) -> None:
    del links.links[0]
    assert await refusal(client, "?peer=dc2") == (409, "there is no link to dc2 now; `replicator status` says why")


async def test_few_traces_at_once(traced: HttpServices, client: Conversation) -> None:
    traces = [traced.tracer.trace(Wanted()) for _ in range(TRACES_MAX)]
    for trace in traces:
        trace.__enter__()
    status, told = await refusal(client, "")
    assert status == 503
    assert told == "4 traces run at this node already, the limit; end one of them"


@pytest.mark.parametrize(("role", "status"), [(Role.READ, 403), (Role.PROXY, 403), (Role.OPERATE, 200)])
async def test_trace_is_for_operators(
    traced: HttpServices, links: FixedLinks, tmp_path: Path, role: Role, status: int
) -> None:
    secret = add_token(tmp_path / "tokens", "one", role)
    fields = f"Authorization: Bearer {secret}\r\n"
    async with conversation(HttpServer(traced, Access(Tokens(tmp_path / "tokens")))) as talk:
        if status == 403:
            assert (await refusal(talk, "", fields))[0] == status
            assert links.observer is None
        else:
            await begin(talk, links, "", fields)
