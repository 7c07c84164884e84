from __future__ import annotations

import datetime as dt
import imaplib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.imap.rendering.fetch_answers import ParsedBody, date_time, fetch_value
from replicator.imap.wire.fetch_items import (
    Adjacent,
    Atom,
    Attribute,
    BodySection,
    FetchItem,
    Partial,
    SectionText,
    Value,
    needs_body,
    response_name,
    sets_seen,
)
from replicator.mail.view import Message
from replicator.mime.skeleton import Skeleton

MESSAGE = Message(
    uid=7,
    guid=bytes(range(16)),
    modseq=3,
    flags=frozenset({"\\Seen", "$Forwarded"}),
    received_ms=1_714_559_645_000,
    size_bytes=26,
    content_hash=bytes(32),
    dot=Dot("dc1.1", 1),
    change=0,
    saved_ms=1_714_559_646_999,
)
BODY = ParsedBody(Skeleton(b"Subject: x\r\n\r\nhello\r\n"))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Attribute.EMAILID, (Atom("M000102030405060708090a0b0c0d0e0f"),)),
        (Attribute.FLAGS, (Atom("$Forwarded"), Atom("\\Seen"))),
        (Attribute.INTERNALDATE, b" 1-May-2024 10:34:05 +0000"),
        (Attribute.RFC822_SIZE, 26),
        (Attribute.SAVEDATE, b" 1-May-2024 10:34:06 +0000"),
        (Attribute.UID, 7),
    ],
)
def test_items_of_the_view_need_no_body(item: Attribute, expected: Value) -> None:
    assert not needs_body(item)
    assert fetch_value(item, MESSAGE, None) == expected
    assert fetch_value(item, MESSAGE, BODY) == expected


PLAIN = (b"TEXT", b"PLAIN", (b"CHARSET", b"US-ASCII"), None, None, b"7BIT", 7, 1)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Attribute.BODY, PLAIN),
        (Attribute.BODYSTRUCTURE, (*PLAIN, None, None, None, None)),
        (Attribute.ENVELOPE, (None, b"x", *(None,) * 8)),
        (Attribute.RFC822, BODY.raw),
        (Attribute.RFC822_HEADER, b"Subject: x\r\n\r\n"),
        (Attribute.RFC822_TEXT, b"hello\r\n"),
        (BodySection(), BODY.raw),
        (BodySection(text=SectionText.TEXT, partial=Partial(1, 3)), b"ell"),
    ],
)
def test_items_of_the_body_are_made_from_it(item: FetchItem, expected: Value) -> None:
    assert needs_body(item)
    assert fetch_value(item, MESSAGE, BODY) == expected


@pytest.mark.parametrize("item", Attribute)
def test_every_attribute_has_a_value(item: Attribute) -> None:
    assert isinstance(fetch_value(item, MESSAGE, BODY), int | bytes | tuple | Adjacent)


@pytest.mark.parametrize("item", [item for item in Attribute if needs_body(item)])
def test_items_of_the_body_are_refused_without_it(item: Attribute) -> None:
    with pytest.raises(AssertionError, match="needs_body"):
        fetch_value(item, MESSAGE, None)


def test_only_fetching_a_body_without_peek_sets_seen() -> None:
    assert {item for item in Attribute if sets_seen(item)} == {Attribute.RFC822, Attribute.RFC822_TEXT}
    assert sets_seen(BodySection())
    assert not sets_seen(BodySection(peek=True))


FIELDS = SectionText.HEADER_FIELDS


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Attribute.RFC822_SIZE, "RFC822.SIZE"),
        (BodySection(), "BODY[]"),
        (BodySection(peek=True), "BODY[]"),
        (BodySection((1, 2)), "BODY[1.2]"),
        (BodySection((1,), SectionText.MIME), "BODY[1.MIME]"),
        (BodySection(text=SectionText.HEADER, partial=Partial(5, 9)), "BODY[HEADER]<5>"),
        (BodySection(text=FIELDS, fields=("Date", "FROM")), "BODY[HEADER.FIELDS (Date FROM)]"),
        (BodySection((3,), SectionText.HEADER_FIELDS_NOT, ("X",)), "BODY[3.HEADER.FIELDS.NOT (X)]"),
        (BodySection(text=FIELDS, fields=('a"b\\c', "d(e", "")), 'BODY[HEADER.FIELDS ("a\\"b\\\\c" "d(e" "")]'),
    ],
)
def test_response_names_follow_from_the_item(item: FetchItem, expected: str) -> None:
    assert response_name(item) == expected


@settings(deadline=None)
@given(st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(9999, 12, 31)))  # noqa: DTZ001 - naive means UTC to hypothesis
def test_date_times_are_read_back(when: dt.datetime) -> None:
    moment = when.replace(microsecond=0, tzinfo=dt.UTC)
    text = date_time(round(moment.timestamp()) * 1000 + 999)
    assert len(text) == len(b"dd-Mmm-yyyy hh:mm:ss +zzzz")
    parsed = imaplib.Internaldate2tuple(b'INTERNALDATE "%b"' % text)
    if moment.year < 2038:  # the C library's limit on some platforms
        assert parsed is not None
    read = dt.datetime.strptime(text.decode().strip(), "%d-%b-%Y %H:%M:%S %z")
    assert read == moment


@pytest.mark.parametrize(
    ("received_ms", "expected"),
    [
        (0, b" 1-Jan-1970 00:00:00 +0000"),
        (-1, b"31-Dec-1969 23:59:59 +0000"),
        (2**63, b"31-Dec-9999 23:59:59 +0000"),
        (-(2**63), b" 1-Jan-0001 00:00:00 +0000"),
    ],
)
def test_date_times_are_clamped_to_years_1_to_9999(received_ms: int, expected: bytes) -> None:
    assert date_time(received_ms) == expected
