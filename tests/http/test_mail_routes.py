"""The route by which mail leaves a node: what it sends, to whom, and what it does about mail that cannot be read."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import msgpack
import pytest
import trio

from protocol.values import UidSet
from replicator.config import LimitsConfig
from replicator.errors import ContentUnavailableError
from replicator.http.access import Access
from replicator.http.mail.mail_routes import NEXT_BODY_S, TOGETHER_MESSAGES, get_mail
from replicator.http.message import Request
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token, delete_token
from replicator.mail.mailstore import BodyReader, NewMessage
from replicator.mail.view import Message, ViewChange
from replicator.replication.timing import BODIES_PATIENCE_S
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import HookedMail

INBOX = "/api/v1/users/alice/folders/inbox/mail"
LARGE = b"Subject: large\r\n\r\n" + random.Random(1).randbytes(400_000).hex().encode()
BODIES = [LARGE, *(b"%d\r\n" % number for number in range(2 * TOGETHER_MESSAGES + 1))]


@pytest.fixture
async def filled(mail: HookedMail) -> HookedMail:
    inbox = await mail.folder("alice", "INBOX")
    for number, body in enumerate(BODIES):
        await mail.save(inbox, NewMessage(body, frozenset({"\\Seen", "work"}), number))
    return mail


@pytest.fixture
async def client(services: HttpServices, filled: HookedMail) -> AsyncIterator[Conversation]:
    assert services.mail is filled
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def get(client: Conversation, target: str, *fields: str, method: str = "GET") -> Answer:
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *fields])
    return await client.ask(f"{head}\r\n\r\n".encode(), method.encode())


def values(answer: Answer) -> list[object]:
    assert answer.status == 200
    unpacker = msgpack.Unpacker()
    unpacker.feed(answer.body)
    return [*unpacker]


def bodies(answer: Answer) -> dict[int, bytes | str]:
    """Return the mail by UID; of one that cannot be read, why."""
    found = dict[int, bytes | str]()
    uid = 0
    *mail, end = values(answer)
    assert end is None
    for value in mail:
        if isinstance(value, list):
            uid = value[0]
            found[uid] = b""
        elif isinstance(value, bytes):
            before = found[uid]
            assert isinstance(before, bytes)
            found[uid] = before + value
        else:
            found[uid] = str(value)
    return found


async def test_all_mail_of_a_folder_comes_in_the_order_of_uids(client: Conversation) -> None:
    answer = await get(client, INBOX)
    assert answer.headers["content-type"] == "application/vnd.msgpack"
    assert [*bodies(answer).items()] == [*enumerate(BODIES, 1)]
    first = values(answer)[0]
    assert isinstance(first, list)
    assert first[:4] == [1, ["\\Seen", "work"], 0, len(LARGE)]


async def test_one_mail_is_sent(client: Conversation) -> None:
    assert bodies(await get(client, f"{INBOX}?uid=3")) == {3: BODIES[2]}


async def test_expunged_mail_is_left_out_and_an_empty_folder_is_an_answer(
    services: HttpServices, filled: HookedMail
) -> None:
    view = await filled.open_mailbox(await filled.folder("alice", "INBOX"))
    await filled.expunge(view, UidSet.of(range(1, len(BODIES))))
    async with conversation(HttpServer(services)) as talk:
        assert [*bodies(await get(talk, INBOX))] == [len(BODIES)]
    await filled.expunge(view, UidSet.of([len(BODIES)]))
    async with conversation(HttpServer(services)) as talk:
        assert values(await get(talk, INBOX)) == [None]


async def test_mail_that_cannot_be_read_is_told_and_the_rest_is_sent(
    services: HttpServices, filled: HookedMail
) -> None:
    messages = (await filled.open_mailbox(await filled.folder("alice", "INBOX"))).messages
    for uid in (1, 5):
        await filled.lose_body(messages[uid])
    async with conversation(HttpServer(services)) as talk:
        found = bodies(await get(talk, INBOX))
    assert [uid for uid, body in found.items() if isinstance(body, str)] == [1, 5]
    assert len(found) == len(BODIES)


async def test_an_answer_waits_long_for_one_body_only_that_is_not_to_be_had(
    services: HttpServices,
    filled: HookedMail,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
) -> None:
    """A body that comes soon is sent all the same."""
    soon, late, lost = 3, 2, ContentUnavailableError("no node in reach has it")
    read_body = filled.read_body

    async def give_up(message: Message) -> BodyReader:
        if message.uid == soon:
            await trio.sleep(NEXT_BODY_S / 2)
            return await read_body(message)
        await trio.sleep(BODIES_PATIENCE_S)
        raise lost

    async def none_at_once(*_: object) -> Mapping[bytes, BodyReader]:
        await trio.lowlevel.checkpoint()
        return {}

    monkeypatch.setattr(filled, "read_body", give_up)
    monkeypatch.setattr(filled, "read_bodies", none_at_once)
    async with conversation(HttpServer(services)) as talk:
        found = bodies(await get(talk, INBOX))
    assert (found.pop(1), found.pop(soon)) == (str(lost), BODIES[soon - 1])
    assert set(found) == {late, *range(soon + 1, len(BODIES) + 1)}
    assert {*found.values()} == {"no other node has sent the body of this message soon enough; ask for it by itself"}


async def test_mail_that_gets_another_uid_meanwhile_is_sent_once(services: HttpServices, filled: HookedMail) -> None:
    view = await filled.open_mailbox(await filled.folder("alice", "INBOX"))
    sent, waiting, lost = (view.messages[uid] for uid in (1, len(BODIES) - 1, len(BODIES)))
    other = sent._replace(uid=waiting.uid, content_hash=bytes(32))  # of another branch, whose UIDs stay
    request = Request(path={"user": "alice", "name": "INBOX"}, query={}, headers={})
    pieces = (await get_mail(services, request)).pieces
    received = await anext(pieces)  # of the first, which is large
    moved = [one._replace(uid=uid) for one, uid in ((sent, 900), (waiting, 901))]
    view.apply(
        ViewChange(
            view.mailbox_id,
            view.highestmodseq + 1,
            902,
            changed=(other, *moved),
            expunged=(sent.uid, lost.uid),
        )
    )
    async for piece in pieces:
        received += piece
    assert [*bodies(Answer(200, {}, received))] == [*range(1, waiting.uid), 901]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (f"{INBOX}?uid=999", 404),
        (f"{INBOX}?uid=x", 400),
        ("/api/v1/users/alice/folders/Nowhere/mail", 404),
        ("/api/v1/users/eve/folders/INBOX/mail", 404),
    ],
)
async def test_refusals(client: Conversation, target: str, status: int) -> None:
    assert (await get(client, target)).status == status


async def test_head_has_no_mail(client: Conversation) -> None:
    answer = await get(client, INBOX, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


async def test_tokens_for_reading_get_no_mail(services: HttpServices, filled: HookedMail) -> None:
    file = filled.store.path.with_name("http.tokens")
    secret = add_token(file, "reader", Role.READ)
    async with conversation(HttpServer(services, Access(Tokens(file)))) as talk:
        assert (await get(talk, INBOX, f"Authorization: Bearer {secret}")).status == 403


async def test_an_answer_is_broken_off_when_its_token_is_deleted(services: HttpServices, filled: HookedMail) -> None:
    file = filled.store.path.with_name("http.tokens")
    secret = add_token(file, "operator", Role.OPERATE)
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(services, Access(Tokens(file))).serve, far)
        head = f"GET {INBOX} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
        await near.send_all(head.encode())
        received = bytes(await near.receive_some())
        assert received.startswith(b"HTTP/1.1 200 ")
        delete_token(file, "operator")
        while data := await near.receive_some():
            received += bytes(data)
    assert len(received) < len(LARGE)
    assert not received.endswith(b"0\r\n\r\n")


async def test_streams_have_a_limit_in_common(services: HttpServices, filled: HookedMail) -> None:
    assert services.mail is filled
    server = HttpServer(replace(services, limits=LimitsConfig(http_streams=1)))
    async with trio.open_nursery() as nursery:
        near, far = trio.testing.lockstep_stream_pair()
        nursery.start_soon(server.serve, far)
        await near.send_all(f"GET {INBOX} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert bytes(await near.receive_some()).startswith(b"HTTP/1.1 200")  # so the first stream has its place
        async with conversation(server) as talk:
            assert (await get(talk, INBOX)).status == 503
        nursery.cancel_scope.cancel()
