"""THREADID: one name for the messages of a conversation, wherever they are and whatever else there is."""

from __future__ import annotations

import re

import pytest

from protocol.values import Dot
from replicator.imap.rendering.fetch_answers import ParsedBody, fetch_value
from replicator.imap.rendering.thread_id import named_thread, thread_id
from replicator.imap.wire.fetch_items import Attribute
from replicator.mail.view import Message
from replicator.mime.header import MAX_FIELDS
from replicator.mime.skeleton import Skeleton
from tests.imap_data.corpus import message_header
from tests.imap_data.hard_mails import HARD_MAILS, lines

MESSAGE = Message(1, bytes(16), 1, frozenset(), 0, 0, bytes(32), Dot("dc1.1", 1), 0)
OTHER = MESSAGE._replace(uid=9, guid=b"\x01" * 16, modseq=7, flags=frozenset({"\\Seen"}), content_hash=b"\x01" * 32)


def told(*fields: str | bytes, message: Message = MESSAGE) -> str:
    return thread_id(message, message_header(lines(*fields) + b"\r\n"))


FIRST = told("Message-ID: <a@x>")

SAME = {
    "reply": ("Message-ID: <b@x>", "In-Reply-To: <a@x>", "References: <a@x>"),
    "reply to a reply": ("Message-ID: <c@x>", "In-Reply-To: <b@x>", "References: <a@x> <b@x>"),
    "reply without References": ("Message-ID: <b@x>", "In-Reply-To: <a@x>"),
    "reply without an id of its own": ("References: <a@x>",),
    "long thread": ("Message-ID: <b@x>", "References: <a@x>" + " <b@x>" * 10_000),
    "folded": ("References:", " <a@x>", "\t<b@x>"),
    "words between": ("In-Reply-To: Your message of Monday <a@x>",),
    "References without ids": ("References: none", "In-Reply-To: <a@x>"),
    "quoted": ('Message-ID: <"a"@x>',),
    "field twice": ("Message-ID: <a@x>", "Message-ID: <b@x>"),
    "after many fields": (*["X: y"] * (MAX_FIELDS - 1), "Message-ID: <a@x>"),
}
DIFFERENT = {
    "another message": ("Message-ID: <b@x>",),
    "same subject": ("Subject: a@x", "Message-ID: <b@x>"),
    "other case": ("Message-ID: <A@x>",),
    "no id": ("Subject: x",),
    "id without brackets": ("Message-ID: a@x",),
    "reply to a reply without References": ("Message-ID: <c@x>", "In-Reply-To: <b@x>"),
}


@pytest.mark.parametrize("name", SAME)
def test_messages_of_one_conversation_have_one_thread_id(name: str) -> None:
    assert told(*SAME[name]) == FIRST
    assert told(*SAME[name], message=OTHER) == FIRST, "whatever is known of the message besides its header"


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_messages_have_other_thread_ids(name: str) -> None:
    assert told(*DIFFERENT[name]) != FIRST


def test_thread_id_is_always_this_one() -> None:
    """A failure means that clients see other THREADIDs than before, which RFC 8474 section 5.2 forbids."""
    assert FIRST == "Tc86469caf2f5f48af1155852002e649f"
    assert told("Subject: x") == "T" + "00" * 16


def test_message_without_an_id_has_the_thread_id_of_its_copies_alone() -> None:
    copy = OTHER._replace(guid=MESSAGE.guid)
    assert told("Subject: x") == told("Subject: x", message=copy) != told("Subject: x", message=OTHER)
    assert named_thread(message_header(b"Subject: x\r\n\r\n")) is None


def test_thread_id_does_not_depend_on_the_fields_that_are_shown() -> None:
    raw = b"A: b\r\n" * 20 + b"References: <a@x>\r\n\r\n"
    values = {fetch_value(Attribute.THREADID, MESSAGE, ParsedBody(Skeleton(raw), shown)) for shown in (1, 20, 100_000)}
    assert values == {(FIRST,)}


@pytest.mark.parametrize("raw", HARD_MAILS.values())
def test_thread_id_has_the_form_of_an_objectid(raw: bytes) -> None:
    assert re.fullmatch("T[0-9a-f]{32}", thread_id(MESSAGE, message_header(raw)))
