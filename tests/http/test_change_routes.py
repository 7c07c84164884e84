"""The route by which an import makes changes of another server: nobody's change here is undone by it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from replicator.http.mail.change_routes import CHANGED_MAX
from replicator.http.message import JSON_TYPE
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.mail.mailstore import NewMessage
from replicator.mail.view import MailboxView
from tests.http.conversation import Answer, Conversation, conversation
from tests.one_node import HookedMail

CHANGES = "/api/v1/users/alice/folders/inbox/changes"
FLAGS = (frozenset[str](), frozenset({"\\Seen"}), frozenset({"\\Seen", "Work"}), frozenset({"\\Seen"}))


@pytest.fixture
async def view(mail: HookedMail) -> MailboxView:
    inbox = await mail.folder("alice", "INBOX")
    for number, flags in enumerate(FLAGS):
        await mail.save(inbox, NewMessage(b"mail %d" % number, flags))
    return await mail.open_mailbox(inbox)


@pytest.fixture
async def client(services: HttpServices, view: MailboxView) -> AsyncIterator[Conversation]:
    assert view.messages
    async with conversation(HttpServer(services)) as talk:
        yield talk


async def change(client: Conversation, **document: object) -> Answer:
    return await client.send("POST", CHANGES, json.dumps(document).encode(), JSON_TYPE)


async def test_only_messages_with_the_expected_flags_are_changed(client: Conversation, view: MailboxView) -> None:
    answer = await change(
        client, uidvalidity=view.uidvalidity, uids="1:9", was=["\\seen"], flags=["\\Flagged", "work", "$New"]
    )
    assert (answer.status, answer.json) == (200, {"changed": "2,4"})
    assert [message.flags for message in view.messages.values()] == [
        FLAGS[0],
        {"\\Flagged", "Work", "$New"},
        FLAGS[2],
        {"\\Flagged", "Work", "$New"},
    ]
    again = await change(client, uidvalidity=view.uidvalidity, uids="1:9", was=["\\Seen"], flags=[])
    assert again.json == {"changed": ""}


async def test_only_messages_with_the_expected_flags_are_expunged(client: Conversation, view: MailboxView) -> None:
    answer = await change(client, uidvalidity=view.uidvalidity, uids="1:3", was=["\\Seen"], flags=None)
    assert (answer.status, answer.json) == (200, {"changed": "2"})
    assert sorted(view.messages) == [1, 3, 4]
    cleared = await change(client, uidvalidity=view.uidvalidity, uids="3", was=["WORK", "\\SEEN"], flags=[])
    assert cleared.json == {"changed": "3"}
    assert not view.messages[3].flags


async def test_uids_of_another_folder_change_nothing(client: Conversation, view: MailboxView) -> None:
    answer = await change(client, uidvalidity=view.uidvalidity + 1, uids="1:9", was=["\\Seen"], flags=None)
    assert answer.status == 409
    assert len(view.messages) == len(FLAGS)


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ({"uids": "x"}, "uids: "),
        ({"uids": "1:*"}, f"{CHANGED_MAX} at most"),
        ({"uids": ""}, "uids must not be empty"),
        ({"uids": None}, "uids is missing"),
        ({"uidvalidity": None}, "uidvalidity is missing"),
        ({"was": "\\Seen"}, "was must be a list"),
        ({"was": [1]}, "was must be a list of 200 flags"),
        ({"flags": ["x"] * 201}, "flags must be a list of 200 flags"),
        ({"flags": ["(no)flag"]}, "is not an IMAP flag"),
        ({"other": 1}, "'other' is not an option"),
    ],
)
async def test_what_makes_no_sense_changes_nothing(
    client: Conversation, view: MailboxView, wrong: dict[str, object], detail: str
) -> None:
    whole: dict[str, object] = {"uidvalidity": view.uidvalidity, "uids": "1:9", "was": ["\\Seen"], "flags": []}
    answer = await change(client, **(whole | wrong))
    assert answer.status == 400
    assert detail in str(answer.json["detail"])
    assert [message.flags for message in view.messages.values()] == [*FLAGS]
