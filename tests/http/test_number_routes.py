"""Numbers that mailboxes have at another server, kept through the API."""

from collections.abc import AsyncIterator

import msgpack
import pytest

from replicator.http.message import MSGPACK_TYPE
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from tests.http.conversation import Conversation, conversation
from tests.one_node import HookedMail

FOLDER = "/api/v1/users/alice/folders/Old"
BATCH = "/api/v1/users/alice/messages/batch?mailbox=Old"


@pytest.fixture
async def client(services: HttpServices) -> AsyncIterator[Conversation]:
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def test_folder_keeps_what_clients_know_of_it_elsewhere(client: Conversation, mail: HookedMail) -> None:
    await client.send("PUT", FOLDER)
    assert (await client.send("PUT", f"{FOLDER}/uidvalidity?uidvalidity=77")).json["uidvalidity"] == 77
    assert (await client.send("PUT", f"{FOLDER}/numbers?uidnext=1&modseq=500")).status == 200
    batch: list[tuple[object, ...]] = [(0, [], b"one", 5), (0, [], b"two", 9), (0, [], b"three")]
    answer = await client.send("POST", BATCH, msgpack.packb(batch), content_type=MSGPACK_TYPE)
    assert (answer.status, answer.json) == (201, {"uidvalidity": 77, "uids": [5, 9, 10]})
    one = await client.send("POST", "/api/v1/users/alice/messages?mailbox=Old&uid=20", b"four")
    assert one.json == {"uidvalidity": 77, "uid": 20}
    numbers = (await client.send("PUT", f"{FOLDER}/numbers?uidnext=40")).json
    assert numbers == {"uidvalidity": 77, "uidnext": 40, "highestmodseq": 503}
    view = await mail.open_mailbox(await mail.folder("alice", "Old"))
    assert (view.uidvalidity, view.uidnext) == (77, 40)
    assert all(message.modseq > 500 for message in view.messages.values())


async def test_folder_gets_its_own_uidvalidity_back(client: Conversation) -> None:
    own = (await client.send("PUT", FOLDER)).json["uidvalidity"]
    await client.send("PUT", f"{FOLDER}/uidvalidity?uidvalidity=77")
    assert (await client.send("PUT", f"{FOLDER}/uidvalidity")).json["uidvalidity"] == own


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("uidvalidity?uidvalidity=0", 400, "query: uidvalidity must be a number"),
        ("uidvalidity?uidvalidity=4294967295", 400, "a UIDVALIDITY is a number from 1 to"),
        ("numbers", 400, "query: uidnext"),
        ("numbers?uidnext=4294967295", 409, "UIDNEXT cannot be raised so far"),
        ("numbers?uidnext=1&modseq=1x", 400, "query: modseq must be a number"),
    ],
)
async def test_wrong_numbers_are_refused(client: Conversation, path: str, status: int, detail: str) -> None:
    await client.send("PUT", FOLDER)
    answer = await client.send("PUT", f"{FOLDER}/{path}")
    assert answer.status == status
    assert str(answer.json["detail"]).startswith(detail)


async def test_folder_with_mail_keeps_its_uidvalidity(client: Conversation) -> None:
    await client.send("PUT", FOLDER)
    await client.send("POST", "/api/v1/users/alice/messages?mailbox=Old", b"mail")
    answer = await client.send("PUT", f"{FOLDER}/uidvalidity?uidvalidity=77")
    assert answer.status == 409
    assert "has had mail" in str(answer.json["detail"])
