from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import quote

import msgpack
import pytest
import trio
from trio.testing import MockClock

from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    MailError,
    QuotaExceededError,
    UnavailableError,
)
from replicator.http import api
from replicator.http.message import MSGPACK_TYPE, encode_json, encode_list
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.mail.mailstore import read_all
from replicator.status import CheckpointStatus, SearchTextStatus
from tests.http.conftest import NOW_MS
from tests.http.conversation import Answer, Conversation, conversation
from tests.http.fixed_report import FixedReport, FixedSearchTexts
from tests.one_node import HookedMail, failing


@pytest.fixture
async def client(services: HttpServices) -> AsyncIterator[Conversation]:
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def get(client: Conversation, target: str, *, method: str = "GET", host: str = "localhost") -> Answer:
    return await client.ask(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), method.encode())


async def post(client: Conversation, target: str, body: bytes, content_type: str = "message/rfc822") -> Answer:
    return await client.send("POST", target, body, content_type)


async def test_health_names_the_node_and_the_reasons_for_not_serving(client: Conversation, report: FixedReport) -> None:
    good = await get(client, "/healthz")
    assert (good.status, good.json) == (200, {"sid": "dc1", "healthy": True, "reasons": []})
    report.reasons.append("the disk is full")
    bad = await get(client, "/healthz")
    assert (bad.status, bad.json["reasons"]) == (503, ["the disk is full"])


async def test_unhealthy_node_is_alive(client: Conversation, report: FixedReport) -> None:
    report.reasons.append("the disk is full")
    alive = await get(client, "/livez")
    assert (alive.status, alive.json) == (200, {"sid": "dc1"})


async def test_metrics_come_from_the_given_registry(client: Conversation) -> None:
    answer = await get(client, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert b"replicator_test 7.0\n" in answer.body


async def test_requests_are_counted_by_route_and_code(client: Conversation) -> None:
    await get(client, "/healthz")
    await get(client, "/healthz")
    await get(client, "/api/v1/users/eve/messages")
    await get(client, "/an/unknown/path")
    text = (await get(client, "/metrics")).body.decode()
    counted = sorted(line for line in text.splitlines() if line.startswith("replicator_http_requests_total{"))
    assert counted == [
        'replicator_http_requests_total{code="200",route="/healthz"} 2.0',
        'replicator_http_requests_total{code="404",route="/api/v1/users/{user}/messages"} 1.0',
        'replicator_http_requests_total{code="404",route="none"} 1.0',
    ]
    assert "_created" not in text


async def test_status_describes_the_node_and_its_links(client: Conversation) -> None:
    document = (await get(client, "/api/v1/status")).json
    assert (document["sid"], document["root"], document["component"]) == ("dc1", "dc1", ["dc1", "dc2"])
    links = document["links"]
    assert isinstance(links, list)
    assert [(link["peer"], link["up"], link["lag_bytes"]) for link in links] == [("dc2", True, 0), ("dc3", False, 2048)]


@pytest.mark.parametrize(
    ("query", "users"), [("", ["alice", "bob"]), ("?user=bob", ["bob"]), ("?user=ann%40example.org", [])]
)
async def test_mailboxes_are_listed_for_all_users_or_one(client: Conversation, query: str, users: list[str]) -> None:
    rows: object = (await get(client, f"/api/v1/mailboxes{query}")).json
    assert isinstance(rows, list)
    assert [row["user"] for row in rows] == users


def test_a_list_is_encoded_item_by_item_alike() -> None:
    for items in ([], [1], [{"ü": "\udc80"}, [None, 2.5], "x"]):
        assert encode_list(items, lambda item: {"item": item}) == encode_json([{"item": item} for item in items])


async def test_mailboxes_of_an_unknown_user_are_404(client: Conversation) -> None:
    answer = await get(client, "/api/v1/mailboxes?user=eve")
    assert (answer.status, "there is no user 'eve'" in str(answer.json["detail"])) == (404, True)


async def test_message_is_stored_byte_for_byte_with_flags_and_date(client: Conversation, mail: HookedMail) -> None:
    body = b"Subject: x\r\n\r\n\x80\xff.\r\n" + bytes(range(256))
    flags = quote("\\seen $Forwarded \\Flagged")
    answer = await post(client, f"/api/v1/users/alice/messages?flags={flags}&received_ms=123456", body)
    inbox = await mail.folder("alice", "INBOX")
    assert (answer.status, answer.json) == (201, {"uidvalidity": inbox.uidvalidity, "uid": 1})
    message = (await mail.open_mailbox(inbox)).messages[1]
    assert await read_all(await mail.read_body(message)) == body
    assert message.flags == {"\\Seen", "$Forwarded", "\\Flagged"}
    assert message.received_ms == 123456


BATCH = "/api/v1/users/alice/messages/batch"
NO_MESSAGES: tuple[object, ...] = (
    1,
    (0, [], b""),
    (0, [], "text"),
    (0, [1], b"x"),
    (-1, [], b"x"),
    (2**48, [], b"x"),
    (True, [], b"x"),
    (0, [], b"x", 0),
    (0, [], b"x", True),
    (0, [], b"x", 2**32),
    (0, [], b"x", 1, 1),
    (0, [], b"x", None, "0" * 16),
    (0, [], b"x", None, b""),
    (0, [], b"x", None, b"0" * 17),
    (0, [], b"x", None, b"0" * 16, None),
    (0, []),
)


async def test_batch_is_stored_in_its_order_with_flags_and_dates(client: Conversation, mail: HookedMail) -> None:
    batch = [(1000 - number, ["\\Seen"] * (number % 2), b"%d" % number) for number in range(70)]
    answer = await post(client, BATCH, msgpack.packb([*batch, (None, [], b"now")]), content_type=MSGPACK_TYPE)
    inbox = await mail.folder("alice", "INBOX")
    assert (answer.status, answer.json) == (201, {"uidvalidity": inbox.uidvalidity, "uids": [*range(1, 72)]})
    assert await mail.bodies("alice") == [*(body for _, _, body in batch), b"now"]
    messages = [*(await mail.open_mailbox(inbox)).messages.values()]
    assert [message.received_ms for message in messages[:-1]] == [received_ms for received_ms, _, _ in batch]
    assert [message.flags for message in messages[:2]] == [frozenset(), {"\\Seen"}]
    assert len({message.dot for message in messages}) == 2, "64 messages in one entry, and the rest in another"


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"\xc1", "the batch is not MessagePack"),
        (b"", "the batch is not MessagePack"),
        (msgpack.packb({}), "a batch must be an array of 1 to 1000 messages"),
        (msgpack.packb([]), "a batch must be an array of 1 to 1000 messages"),
        (msgpack.packb([(0, [], b"x")] * 1001), "the batch is not MessagePack: 1001 exceeds max_array_len(1000)"),
        *(
            (
                msgpack.packb([(0, [], b"x"), wrong]),
                "message 2 of the batch is not [received_ms or nil, [flag, ...], body, uid or nil, guid or nil]",
            )
            for wrong in NO_MESSAGES
        ),
        (msgpack.packb([(0, [], b"x"), (0, ["(no)flag"], b"x")]), "'(no)flag' is not an IMAP flag that can be set"),
        (
            msgpack.packb([(0, [], body, None, b"0" * 16) for body in (b"x", b"y")]),
            "two messages of the batch have one",
        ),
    ],
)
async def test_wrong_batch_is_refused_whole(client: Conversation, mail: HookedMail, packed: bytes, reason: str) -> None:
    answer = await post(client, BATCH, packed, content_type=MSGPACK_TYPE)
    assert answer.status == 400
    assert str(answer.json["detail"]).startswith(reason)
    assert await mail.bodies("alice") == []


async def test_mail_of_a_batch_gets_its_guid_once(client: Conversation, mail: HookedMail) -> None:
    batch = msgpack.packb([(0, [], b"one", 5, b"1" * 16), (0, [], b"two", None, b"2" * 16), (0, [], b"three")])
    for _ in range(2):
        answer = await post(client, BATCH, batch, content_type=MSGPACK_TYPE)
        assert answer.status == 201
        assert str(answer.json["uids"]).startswith("[5, 6, ")
    messages = (await mail.open_mailbox(await mail.folder("alice", "INBOX"))).messages
    assert {uid: messages[uid].guid for uid in (5, 6)} == {5: b"1" * 16, 6: b"2" * 16}
    assert [*messages] == [5, 6, 7, 8], "without a GUID, each is another one"


async def test_keywords_keep_the_mailboxes_spelling(client: Conversation, mail: HookedMail) -> None:
    for keyword in ("Work", "WORK"):
        assert (await post(client, f"/api/v1/users/alice/messages?flags={keyword}", b"x")).status == 201
    view = await mail.open_mailbox(await mail.folder("alice", "INBOX"))
    assert {message.flags for message in view.messages.values()} == {frozenset({"Work"})}


async def test_folder_is_created_once_and_takes_mail(client: Conversation, mail: HookedMail) -> None:
    path = "/api/v1/users/ann%40example.org/folders/Archive%2F%C3%9Cbung"
    assert [(await get(client, path, method="PUT")).status for _ in range(2)] == [201, 200]
    target = f"/api/v1/users/ann@example.org/messages?mailbox={quote('Archive/Übung')}"
    assert (await post(client, target, b"a: b\r\n\r\n")).status == 201
    assert await mail.bodies("ann@example.org", "Archive/Übung") == [b"a: b\r\n\r\n"]


async def test_messages_are_listed_by_content_in_pages(
    client: Conversation, mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MESSAGES_PAGE", 2)
    bodies = [b"a", b"b", b"c"]
    for body in bodies:
        await post(client, "/api/v1/users/alice/messages", body)
    inbox = await mail.folder("alice", "INBOX")
    uidvalidity, messages = inbox.uidvalidity, (await mail.open_mailbox(inbox)).messages
    rows = [
        {"uid": uid, "sha256": hashlib.sha256(body).hexdigest(), "guid": messages[uid].guid.hex()}
        for uid, body in enumerate(bodies, 1)
    ]
    first = (await get(client, "/api/v1/users/alice/messages")).json
    assert first == {"uidvalidity": uidvalidity, "messages": rows[:2], "more": True}
    second = (await get(client, "/api/v1/users/alice/messages?after=2")).json
    assert second == {"uidvalidity": uidvalidity, "messages": rows[2:], "more": False}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DiskFullError("no room"), 507),
        (QuotaExceededError("no room"), 507),
        (DurabilityError("too few nodes"), 503),
        (UnavailableError("no master"), 503),
        (ContentUnavailableError("gone"), 503),
    ],
)
async def test_errors_of_the_store_become_problem_documents(
    client: Conversation, mail: HookedMail, error: MailError, status: int
) -> None:
    mail.before_change = failing(error)
    answer = await post(client, "/api/v1/users/alice/messages", b"x")
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert (answer.json["status"], answer.json["detail"]) == (status, str(error))


@pytest.mark.parametrize(
    ("target", "status", "word"),
    [
        ("/api/v1/users/eve/messages", 404, "no user 'eve'"),
        ("/api/v1/users/alice/messages?mailbox=Nowhere", 404, "Nowhere"),
        ("/api/v1/users/alice/messages?flags=%5COdd", 400, "Odd"),
        ("/api/v1/users/alice/messages?flags=a(b", 400, "a(b"),
        ("/api/v1/users/alice/messages?flags=" + "a" * 65, 409, "64 bytes"),
        ("/api/v1/users/alice/messages?received_ms=-1", 400, "received_ms"),
        ("/api/v1/users/alice/messages?received_ms=" + "9" * 400, 400, "received_ms"),
        ("/api/v1/users/alice/messages?received_ms=%D9%A1", 400, "received_ms"),
        ("/api/v1/users/alice/messages?recieved_ms=1", 400, "recieved_ms"),
        ("/api/v1/users/alice/messages?mailbox=a&mailbox=b", 400, "twice"),
        ("/api/v1/users/alice/messages?mailbox=%FF", 400, "query"),
        ("/api/v1/users/%FF/messages", 400, "UTF-8"),
        ("/api/v1/users/alice/messages?" + "a=1&" * 40, 400, "query"),
    ],
)
async def test_invalid_requests_are_explained(client: Conversation, target: str, status: int, word: str) -> None:
    answer = await post(client, target, b"x")
    assert answer.status == status
    assert word in str(answer.json["detail"])


async def test_a_parameter_that_must_be_there_is_asked_for(client: Conversation) -> None:
    answer = await get(client, "/api/v1/users/alice/folders/INBOX/name", method="PUT")
    assert (answer.status, answer.json["detail"]) == (400, "query: to is missing")


async def test_empty_message_is_refused(client: Conversation) -> None:
    assert (await post(client, "/api/v1/users/alice/messages", b"")).status == 400


async def test_unknown_path_is_404_and_wrong_method_405_with_allow(client: Conversation) -> None:
    assert (await get(client, "/api/v2/status")).status == 404
    assert (await get(client, "/api/v1/users/alice/folders/a/b", method="PUT")).status == 404
    wrong = await get(client, "/api/v1/users/alice/messages", method="DELETE")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, POST")
    post_only = await get(client, "/api/v1/checkpoint")
    assert (post_only.status, post_only.headers["allow"]) == (405, "POST")
    assert (await get(client, "/healthz")).status == 200


async def test_head_answers_like_get_without_a_body(client: Conversation) -> None:
    head = await get(client, "/healthz", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert (await get(client, "/healthz")).headers["content-length"] == head.headers["content-length"]


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1080", "127.0.0.1:1080", "127.9.9.9", "[::1]:80", "LOCALHOST"]
)
async def test_loopback_hosts_are_served(client: Conversation, host: str) -> None:
    assert (await get(client, "/healthz", host=host)).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "evil@127.0.0.1.example", "", "0.0.0.0"]
)
async def test_other_hosts_are_refused(client: Conversation, host: str) -> None:
    assert (await get(client, "/healthz", host=host)).status == 421


@pytest.mark.parametrize("host", ["[::1", "localhost:port"])
async def test_invalid_hosts_are_refused(client: Conversation, host: str) -> None:
    assert (await get(client, "/healthz", host=host)).status == 400


async def test_host_of_an_absolute_target_counts(client: Conversation) -> None:
    assert (await get(client, "http://evil.example/healthz")).status == 421
    assert (await get(client, "http://127.0.0.1:1080/healthz", host="evil.example")).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_content_types_that_a_web_page_can_send_are_refused(
    client: Conversation, mail: HookedMail, content_type: str
) -> None:
    answer = await post(client, "/api/v1/users/alice/messages", b"x", content_type)
    assert answer.status == 415
    assert await mail.bodies("alice") == []


async def test_no_answer_invites_other_web_origins(client: Conversation) -> None:
    preflight = await get(client, "/api/v1/users/alice/messages", method="OPTIONS")
    assert preflight.status == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]


async def test_search_texts_are_begun_anew(client: Conversation, search_texts: FixedSearchTexts) -> None:
    request = b"POST /api/v1/search/rebuild HTTP/1.1\r\nHost: localhost\r\n\r\n"
    none = await client.ask(request, b"POST")
    assert (none.status, none.json) == (202, {"bodies": 0, "waiting": 0, "size_bytes": 0})
    search_texts.status = SearchTextStatus(3, 4, 5)
    some = await client.ask(request, b"POST")
    assert (some.status, some.json) == (202, {"bodies": 3, "waiting": 4, "size_bytes": 5})
    assert search_texts.begun == 2


async def test_node_that_is_to_keep_no_search_texts_refuses_to_begin_them(services: HttpServices) -> None:
    async with conversation(HttpServer(replace(services, search_texts=None))) as client:
        answer = await client.ask(b"POST /api/v1/search/rebuild HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert answer.status == 409
    assert answer.json["detail"] == "this node keeps no search texts: `full_text` in [search] is false"


async def test_checkpoint_is_answered_when_it_is_written(client: Conversation, report: FixedReport) -> None:
    report.written_ms = NOW_MS + 500
    done = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (done.status, done.json["outcome"], done.json["saved"]) == (200, "written", 3)
    assert done.json["waits_for"] == ["dc2"]
    again = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (again.status, again.json["outcome"], again.json["made_ms"]) == (200, "unchanged", NOW_MS + 500)
    report.unsaved = True
    waiting = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (waiting.status, waiting.json["outcome"]) == (200, "waiting")
    report.checkpoint = replace(report.checkpoint, in_force=True)  # the unsaved changes are newer than the manifest
    just_now = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (just_now.status, just_now.json["outcome"]) == (200, "unchanged")
    report.checkpoint = replace(report.checkpoint, error="the object store is down")
    failed = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (failed.status, failed.json["detail"]) == (503, "the object store is down")


async def test_manifest_found_at_the_start_counts_as_unchanged(client: Conversation, report: FixedReport) -> None:
    report.checkpoint, report.written_ms = CheckpointStatus(), NOW_MS - 3_600_000
    answer = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (answer.status, answer.json["outcome"]) == (200, "unchanged")


@pytest.mark.parametrize("name", ["inbox", "InBox"])
async def test_inbox_ignores_case(client: Conversation, mail: HookedMail, name: str) -> None:
    assert (await post(client, f"/api/v1/users/alice/messages?mailbox={name}", b"x")).status == 201
    assert await mail.bodies("alice") == [b"x"]
    put = await get(client, f"/api/v1/users/alice/folders/{name}", method="PUT")
    assert (put.status, put.json["name"]) == (200, "INBOX")
    below = await get(client, f"/api/v1/users/alice/folders/{name}%2Ftaxes", method="PUT")
    assert (below.status, below.json["name"]) == (201, "INBOX/taxes")
    master = await get(client, f"/api/v1/users/alice/folders/{name}/master")
    assert (master.status, master.json["master"]) == (200, "dc1")


async def test_long_checkpoint_is_answered_before_its_end(
    client: Conversation, report: FixedReport, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    began = autojump_clock.current_time()
    monkeypatch.setattr(report, "checkpoint_now", trio.sleep_forever)
    answer = await client.ask(b"POST /api/v1/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST")
    assert (answer.status, answer.json["outcome"], answer.json["saved"]) == (202, "running", 0)
    assert autojump_clock.current_time() - began == api.CHECKPOINT_WAIT_S
