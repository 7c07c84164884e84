"""The routes by which an operator expunges mail: what the look tells, and that the deed removes nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import NoReturn
from urllib.parse import quote

import pytest
import trio

from protocol.values import UidSet
from replicator.config import ContentConfig
from replicator.http.access import Access
from replicator.http.mail import expunge_routes
from replicator.http.mail.expunge_routes import EXPUNGED_MAX
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token
from replicator.imap.rendering.outline import OUTLINER
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import MailboxView
from tests.http.conftest import NOW_MS
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import HookedMail

FOLDER = "/api/v1/users/Alice/folders/inbox"
MAILS = 25


def body(number: int) -> bytes:
    return b"Message-ID: <%d@example.org>\r\n\r\n%d" % (number % 10, number)


@pytest.fixture
async def view(mail: HookedMail, monkeypatch: pytest.MonkeyPatch) -> MailboxView:
    """Alice's INBOX: the mail with the UID n was received in second n, and UIDs 3, 13 and 23 have one Message-ID."""
    monkeypatch.setattr(expunge_routes, "LOOKED_AT", 10)
    monkeypatch.setattr(expunge_routes, "HEADERS_AT_ONCE", 4)
    inbox = await mail.folder("alice", "INBOX")
    for number in range(1, MAILS + 1):
        await mail.save(inbox, NewMessage(body(number), received_ms=number * 1000))
    return await mail.open_mailbox(inbox)


@pytest.fixture
async def client(services: HttpServices, view: MailboxView) -> AsyncIterator[Conversation]:
    assert view.messages
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def look(client: Conversation, query: str, *fields: str) -> Answer:
    head = "\r\n".join([f"GET {FOLDER}/chosen{query} HTTP/1.1", "Host: localhost", *fields])
    return await client.ask(f"{head}\r\n\r\n".encode())


async def expunge(client: Conversation, document: Mapping[str, object], *fields: str) -> Answer:
    text = json.dumps(document)
    lines = [
        f"POST {FOLDER}/expunge HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(text)}",
        *fields,
    ]
    return await client.ask(("\r\n".join(lines) + f"\r\n\r\n{text}").encode(), b"POST")


def seen(view: MailboxView, uids: str, **other: object) -> dict[str, object]:
    return {"node": "dc1", "uidvalidity": view.uidvalidity, "uids": uids} | other


async def test_a_look_tells_a_page_of_what_is_chosen_and_removes_nothing(
    client: Conversation, view: MailboxView
) -> None:
    first = (await look(client, "")).json
    assert first == {
        "node": "dc1",
        "user": "alice",
        "mailbox": "INBOX",
        "uidvalidity": view.uidvalidity,
        "uids": "1:10",
        "messages": 10,
        "size_bytes": sum(len(body(number)) for number in range(1, 11)),
        "oldest_ms": 1000,
        "newest_ms": 10_000,
        "unchecked": 0,
        "after": 10,
        "keep_expunged_s": ContentConfig().keep_expunged_s,
    }
    last = (await look(client, "?after=20")).json
    assert (last["uids"], last["after"]) == ("21:25", None)
    assert [*view.messages] == [*range(1, MAILS + 1)]


@pytest.mark.parametrize(
    ("query", "uids", "after"),
    [
        ("?uids=3,5:7,99", "3,5:7", None),
        ("?uids=20:*", "20:25", None),
        ("?uids=1:*&after=15", "16:25", 25),
        ("?uids=4:30&after=8", "9:18", 18),
        ("?before_ms=3000", "1:2", 10),
        ("?before_ms=3000&after=10", "", 20),
        ("?before_ms=0", "", 10),
        ("?uids=2:9&before_ms=4001", "2:4", None),
        ("?uids=99", "", None),
        (f"?message_id={quote('3@example.org')}", "3", 10),
        (f"?message_id={quote('3@example.org')}&after=10", "13", 20),
        (f"?message_id={quote('3@example.org')}&after=20", "23", None),
        (f"?message_id={quote('3@example.org')}&uids=13", "13", None),
        ("?message_id=none", "", 10),
    ],
)
async def test_mail_is_chosen_by_all_that_is_named(
    client: Conversation, query: str, uids: str, after: int | None
) -> None:
    answer = await look(client, query)
    assert (answer.status, answer.json["uids"], answer.json["after"]) == (200, uids, after)


@pytest.mark.parametrize(
    "query", ["?uids=", "?uids=*", "?uids=0", "?before_ms=yesterday", "?message_id=", "?after=-1", "?guid=1"]
)
async def test_a_choice_that_makes_no_sense_is_refused(client: Conversation, query: str) -> None:
    assert (await look(client, query)).status == 400


async def test_message_ids_are_found_in_outlines_without_reading_bodies(
    client: Conversation,
    mail: HookedMail,
    view: MailboxView,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nursery.start_soon(mail.outline, OUTLINER)
    while len(await mail.outlines(view.snapshot(), OUTLINER.version)) < MAILS:  # noqa: ASYNC110
        await trio.sleep(0.01)

    def read_bodies(*_: object) -> NoReturn:
        raise AssertionError("a body is read")

    monkeypatch.setattr(mail, "read_bodies", read_bodies)
    found = [(await look(client, f"?message_id=3%40example.org&after={after}")).json for after in (0, 10, 20)]
    assert [(one["uids"], one["unchecked"]) for one in found] == [("3", 0), ("13", 0), ("23", 0)]


async def test_mail_whose_header_cannot_be_read_is_counted(
    client: Conversation, mail: HookedMail, view: MailboxView, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in (2, 3, 7):
        await mail.lose_body(view.messages[uid])
    found = (await look(client, "?message_id=3%40example.org")).json
    assert (found["uids"], found["unchecked"], found["after"]) == ("", 3, 10)
    found = (await look(client, "?message_id=3%40example.org&after=10")).json
    assert (found["uids"], found["unchecked"]) == ("13", 0)
    monkeypatch.setattr(expunge_routes, "READ_S", 0.0)
    found = (await look(client, "?message_id=3%40example.org&after=20")).json
    assert (found["uids"], found["unchecked"]) == ("", 5), "those for which there is no time"


async def test_the_deed_removes_what_it_names_and_keeps_it_for_undelete(
    client: Conversation, mail: HookedMail, view: MailboxView
) -> None:
    found = (await look(client, "?uids=3:5,9")).json
    late = await mail.save(await mail.folder("alice", "INBOX"), NewMessage(b"late"))
    answer = await expunge(client, seen(view, str(found["uids"])))
    keep_ms = int(ContentConfig().keep_expunged_s * 1000)
    assert (answer.status, answer.json) == (200, {"messages": 4, "missing": 0, "until_ms": NOW_MS + keep_ms})
    assert [*view.messages] == [uid for uid in range(1, MAILS + 1) if uid not in {3, 4, 5, 9}] + [late.uid]
    kept = (await mail.stories().mailbox("alice", "INBOX")).kept_messages
    assert kept == 4


async def test_mail_that_had_gone_is_counted_as_missing(
    client: Conversation, mail: HookedMail, view: MailboxView
) -> None:
    await mail.expunge(view, UidSet.of([4, 5]))
    answer = await expunge(client, seen(view, "3:5"))
    assert (answer.json["messages"], answer.json["missing"]) == (1, 2)
    answer = await expunge(client, seen(view, "3:5"))
    assert (answer.json["messages"], answer.json["missing"]) == (0, 3)
    assert len(view.messages) == MAILS - 3


async def test_mail_to_which_a_merge_gives_another_uid_during_the_deed_is_counted_if_it_stays(
    client: Conversation, mail: HookedMail, view: MailboxView
) -> None:
    async def merge(_user: str) -> None:
        view.messages[99] = view.messages.pop(4)._replace(uid=99)

    mail.before_change = merge
    answer = await expunge(client, seen(view, "4:5"))
    assert (answer.json["messages"], answer.json["missing"]) == (1, 1)


@pytest.mark.parametrize("other", [{"uidvalidity": 1}, {"node": "dc2"}])
async def test_uids_of_another_look_are_refused(
    client: Conversation, view: MailboxView, other: dict[str, object]
) -> None:
    answer = await expunge(client, seen(view, "1:5", **other))
    assert (answer.status, "nothing is removed" in str(answer.json["detail"])) == (409, True)
    assert len(view.messages) == MAILS


async def test_uids_of_a_folder_that_another_one_has_replaced_are_refused(
    client: Conversation, mail: HookedMail
) -> None:
    await mail.create_folder("alice", "Old")
    old = await mail.folder("alice", "Old")
    await mail.save(old, NewMessage(b"old"))
    before = await mail.open_mailbox(old)
    await mail.delete_folder("alice", "Old")
    await mail.create_folder("alice", "Old")
    await mail.save(await mail.folder("alice", "Old"), NewMessage(b"new"))
    text = json.dumps(seen(before, "1"))
    answer = await client.ask(
        "POST /api/v1/users/alice/folders/Old/expunge HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode(),
        b"POST",
    )
    assert (answer.status, await mail.bodies("alice", "Old")) == (409, [b"new"])


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"node": "dc1", "uidvalidity": 1},
        {"node": "dc1", "uids": "1"},
        {"uidvalidity": 1, "uids": "1"},
        {"node": "dc1", "uidvalidity": "1", "uids": "1"},
        {"node": "dc1", "uidvalidity": 0, "uids": "1"},
        {"node": "dc1", "uidvalidity": True, "uids": "1"},
        {"node": "dc1", "uidvalidity": 1, "uids": "1:*"},
        {"node": "dc1", "uidvalidity": 1, "uids": f"1:{EXPUNGED_MAX + 1}"},
        {"node": "dc1", "uidvalidity": 1, "uids": ""},
        {"node": "dc1", "uidvalidity": 1, "uids": "1", "all": True},
    ],
)
async def test_a_deed_that_makes_no_sense_is_refused(
    client: Conversation, view: MailboxView, document: dict[str, object]
) -> None:
    assert (await expunge(client, document)).status == 400
    assert len(view.messages) == MAILS


async def test_tokens_for_reading_neither_look_nor_expunge(
    services: HttpServices, mail: HookedMail, view: MailboxView
) -> None:
    file = mail.store.path.with_name("http.tokens")
    secrets = {role: add_token(file, role.value, role) for role in (Role.READ, Role.OPERATE)}
    server = HttpServer(services, Access(Tokens(file)))
    for role, status in ((Role.READ, 403), (Role.OPERATE, 200)):
        token = f"Authorization: Bearer {secrets[role]}"
        async with conversation(server) as talk:
            assert (await look(talk, "?uids=1", token)).status == status
            assert (await expunge(talk, seen(view, "1"), token)).status == status
            assert (1 in view.messages) == (status == 403)
