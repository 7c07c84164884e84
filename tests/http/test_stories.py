"""Routes that tell stories: what they answer, to whom, and how they refuse."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import pytest

from protocol.values import UID_MAX, UidSet
from replicator.http.access import Access
from replicator.http.parameters import TIME_MAX_MS
from replicator.http.server import HANDLER_S, HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.runtime.environment import run_in_thread
from replicator.stories import LAST_MAX
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import HookedMail

T = TypeVar("T")

INBOX = "/api/v1/users/alice/folders/INBOX"
GUID = "ab" * 16


@pytest.fixture
async def client(services: HttpServices, mail: HookedMail) -> AsyncIterator[Conversation]:
    """Talk to a node at which alice has had two mails, and expunged the first."""
    folder = await mail.folder("alice", "INBOX")
    for number in range(2):
        await mail.save(folder, NewMessage(b"Message-ID: <%d@example.org>\r\n\r\nmail" % number))
    await mail.expunge(await mail.open_mailbox(folder), UidSet.of([1]))
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def get(client: Conversation, target: str) -> Answer:
    return await client.ask(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def rows(answer: Answer, name: str) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", answer.json[name])


async def test_mailbox_is_told(client: Conversation) -> None:
    found = await get(client, "/api/v1/users/Alice/folders/inbox")
    assert found.status == 200
    told = {name: found.json[name] for name in ("node", "user", "mailbox", "messages", "uidnext", "kept_messages")}
    assert told == {"node": "dc1", "user": "alice", "mailbox": "INBOX", "messages": 1, "uidnext": 3, "kept_messages": 1}


async def test_log_is_told(client: Conversation) -> None:
    found = await get(client, f"{INBOX}/log")
    assert found.status == 200
    deeds = [deed for one in rows(found, "entries") for deed in cast("list[dict[str, str]]", one["deeds"])]
    assert [deed["kind"] for deed in deeds] == ["expunged", "arrived", "arrived"]
    last = await get(client, f"{INBOX}/log?last=1")
    assert (len(rows(last, "entries")), last.json["is_cut"]) == (1, True)
    assert rows(await get(client, f"{INBOX}/log?since_ms={TIME_MAX_MS}"), "entries") == []
    tree = await get(client, "/api/v1/users/alice/log")
    assert (tree.status, tree.json["mailbox"], len(rows(tree, "entries"))) == (200, None, 1)


async def test_mail_is_told(client: Conversation) -> None:
    gone = await get(client, f"{INBOX}/story?uid=1")
    assert gone.status == 200
    [life] = rows(gone, "lives")
    assert (life["shown"], life["message_id"], life["same"]) == (None, "0@example.org", "asked")
    assert rows(await get(client, f"{INBOX}/story?guid={life['guid']}"), "lives") == [life]
    [other] = rows(await get(client, f"{INBOX}/story?message_id=1%40example.org"), "lives")
    assert other["message_id"] == "1@example.org"
    unknown = await get(client, f"{INBOX}/story?uid=77")
    assert (unknown.status, unknown.json["lives"]) == (200, [])
    assert cast("dict[str, object]", unknown.json["looked_at"])["entries"] == 3


@pytest.mark.parametrize("what", ["", "/log", "/story?uid=1"])
async def test_what_is_not_known_is_refused_with_clear_words(client: Conversation, what: str) -> None:
    nobody = await get(client, f"/api/v1/users/eve/folders/INBOX{what}")
    assert (nobody.status, "there is no user 'eve'" in str(nobody.json["detail"])) == (404, True)
    nowhere = await get(client, f"/api/v1/users/alice/folders/Nowhere{what}")
    assert (nowhere.status, "alice has no folder 'Nowhere' at dc1" in str(nowhere.json["detail"])) == (404, True)


async def test_tree_of_a_user_without_folders(client: Conversation) -> None:
    assert (await get(client, "/api/v1/users/eve/log")).status == 404
    found = await get(client, "/api/v1/users/bob/log")
    assert (found.status, "bob has no folders at dc1" in str(found.json["detail"])) == (404, True)
    found = await get(client, "/api/v1/users/bob/folders/INBOX")
    assert (found.status, "bob has no folder 'INBOX' at dc1" in str(found.json["detail"])) == (404, True)


async def test_mail_of_a_user_who_is_gone_is_told(client: Conversation, mail: HookedMail) -> None:
    await mail.folder("gone", "INBOX")
    assert (await get(client, "/api/v1/users/gone/folders/INBOX")).status == 200


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/log?last=0", f"last must be a number from 1 to {LAST_MAX}"),
        (f"/log?last={LAST_MAX + 1}", f"last must be a number from 1 to {LAST_MAX}"),
        ("/log?last=-1", "last must be a number"),
        ("/log?since_ms=yesterday", "since_ms must be a number from 0"),
        (f"/log?since_ms={TIME_MAX_MS + 1}", "since_ms must be a number from 0"),
        ("/log?until_ms=1", "'until_ms' is unknown here"),
        ("/story", "name the mail by one of uid, guid and message_id"),
        (f"/story?uid=1&guid={GUID}", "name the mail by one of uid, guid and message_id"),
        ("/story?uid=0", "uid must be a number from 1"),
        (f"/story?uid={UID_MAX + 1}", "uid must be a number from 1"),
        (f"/story?guid={GUID}0", "guid must be 16 bytes in hexadecimal"),
        (f"/story?guid={GUID[:-1]}x", "guid must be 16 bytes in hexadecimal"),
        ("/story?message_id=", "message_id must have 1 to 1000 characters"),
        (f"/story?message_id={'x' * 1001}", "message_id must have 1 to 1000 characters"),
    ],
)
async def test_impossible_questions_are_refused(client: Conversation, target: str, why: str) -> None:
    refused = await get(client, f"{INBOX}{target}")
    assert (refused.status, why in str(refused.json["detail"])) == (400, True), refused.json


async def test_tokens_for_reading_are_told_numbers_and_not_what_users_did(
    services: HttpServices, mail: HookedMail, tmp_path: Path
) -> None:
    await mail.folder("alice", "INBOX")
    file = tmp_path / "http.tokens"
    secrets = {role: add_token(file, role.value, role) for role in Role}
    for role, target, status in (
        (Role.READ, INBOX, 200),
        (Role.READ, f"{INBOX}/log", 403),
        (Role.READ, "/api/v1/users/alice/log", 403),
        (Role.READ, f"{INBOX}/story?uid=1", 403),
        (Role.OPERATE, INBOX, 200),
        (Role.OPERATE, f"{INBOX}/log", 200),
        (Role.OPERATE, "/api/v1/users/alice/log", 200),
        (Role.OPERATE, f"{INBOX}/story?uid=1", 200),
        (Role.PROXY, INBOX, 403),
        (Role.PROXY, f"{INBOX}/log", 403),
    ):
        async with conversation(HttpServer(services, Access(Tokens(file)))) as talk:
            head = f"GET {target} HTTP/1.1\r\nHost: dc1\r\nAuthorization: Bearer {secrets[role]}\r\n\r\n"
            answer = await talk.ask(head.encode())
        assert (role, target, answer.status) == (role, target, status)


def test_story_ends_before_its_request() -> None:
    assert timing.STORY_READ_S + timing.STORY_ASK_S < HANDLER_S


async def test_long_stories_are_written_in_threads(services: HttpServices, mail: HookedMail) -> None:
    await mail.folder("alice", "INBOX")
    threads: set[int] = set()

    async def in_thread(work: Callable[[], T]) -> T:
        def note_and_work() -> T:
            threads.add(threading.get_ident())
            return work()

        return await run_in_thread(note_and_work)

    async with conversation(HttpServer(replace(services, run_in_thread=in_thread))) as talk:
        assert (await get(talk, f"{INBOX}/log")).status == 200
    assert threads
    assert threading.get_ident() not in threads
