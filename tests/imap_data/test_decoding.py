from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import email.policy
import quopri
import re
from email.message import EmailMessage
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol.units import KIB
from replicator.imap.matching.bounds import ReadableText
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.header_columns import Column, texts
from replicator.imap.text.casemap import casemap
from replicator.imap.text.decoding import (
    _decoded,
    _transfer_decoded,
    decode_text,
    header_text,
    part_text,
    sent_date,
    value_text,
)
from replicator.imap.work_meter import WorkMeter
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import parse
from tests.imap_data.corpus import message_header


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"plain", "plain"),
        (b"=?utf-8?q?gr=C3=BCn?= text", "grün text"),
        (b"=?UTF-8?B?Z3LDvG4=?=", "grün"),
        (b"=?iso-8859-1?Q?gr=FCn_und?= =?iso-8859-1?Q?_rot?=", "grün und rot"),
        (b"=?utf-8?b?4oI=?= =?utf-8?b?rA==?=", "€"),  # one character in two words
        (b"=?windows-1252*en?q?=80?=", "€"),
        (b"=?utf-8?q?with blanks?=", "with blanks"),
        (b"=?x-unknown?q?gr=FCn?=", "grün"),
        (b"a =?utf-8?b?!?= b", "a  b"),
        (b"=?utf-8?b?a?=", "=?utf-8?b?a?="),
        (b"=?utf-8?x?a?=", "=?utf-8?x?a?="),
        ("grün".encode(), "grün"),
        ("grün".encode("latin-1"), "grün"),
        (b"a =?us-ascii?q?b?= c", "a b c"),
    ],
)
def test_header_values_are_decoded(value: bytes, expected: str) -> None:
    assert value_text(value) == expected


def test_whole_header_is_decoded_and_unfolded() -> None:
    raw = b"Subject: =?utf-8?q?gr=C3=BCn?=\r\n =?utf-8?q?er?=\r\nTo: a,\r\n\tb\r\n\r\n"
    assert header_text(message_header(raw)) == "Subject: grüner\r\nTo: a,\tb\r\n"


@pytest.mark.parametrize(
    ("charset", "octets", "expected"),
    [
        ("utf-8", b"\xc3\xa4", "ä"),
        ("UTF8", b"\xff", "\ufffd"),
        ("us-ascii", b"\xc3\xa4", "ä"),
        ("Windows-1252", b"\x80", "€"),
        ("KOI8-R", b"\xc1", "а"),  # noqa: RUF001 - the Cyrillic letter is meant
        ("iso-2022-jp", b'\x1b$B$"\x1b(B', "あ"),
        ("x-unknown", b"\xe4", "ä"),
        ("punycode", b"a-", "a-"),
        ("rot13", b"a", "a"),
        ("hex", b"61", "61"),
        ("\x00", b"a", "a"),
        ("ä", b"a", "a"),
        ("u" * 1000, b"a", "a"),
        ("../../etc", b"a", "a"),
        ("utf-16", b"a", "\ufffd"),
        (None, b"\xe4", "ä"),
    ],
)
def test_text_is_decoded_from_its_charset(charset: str | None, octets: bytes, expected: str) -> None:
    assert decode_text(octets, charset) == expected


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=200),
    st.sampled_from(["base64", "quoted-printable", "8bit"]),
)
def test_messages_of_the_email_package_are_decoded(text: str, encoding: str) -> None:
    message = EmailMessage(email.policy.SMTP)
    message.set_content(text, charset="utf-8", cte=encoding)
    assert "".join(part_text(parse(message.as_bytes()))).splitlines() == (text + "\n").splitlines()


@pytest.mark.parametrize("broken", [b"Z3LDvG4", b"Z3 LD\r\nvG4=", b"Z3LDvG4=trailing", b"*Z3LD*vG4="])
def test_broken_base64_is_decoded_as_far_as_possible(broken: bytes) -> None:
    part = parse(b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: BASE64\n\n" + broken)
    assert "".join(part_text(part)).startswith("grün")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"Mon, 7 Feb 1994 21:52:25 -0800 (PST)", dt.date(1994, 2, 7)),
        (b"7 Feb 94 23:59:59 -1200", dt.date(1994, 2, 7)),
        (b"Thu, 29 Feb 2024 00:00:00 +1400", dt.date(2024, 2, 29)),
        (b"Thu, 30 Feb 2024 00:00:00 +0000", None),
        (b"nonsense", None),
        (b"", None),
        (b"1 Jan 99999 00:00:00 +0000", None),
        (b"1 Jan " + b"9" * 5000 + b" 00:00:00 +0000", None),
    ],
)
def test_sent_date_is_read_from_the_header(value: bytes, expected: dt.date | None) -> None:
    assert sent_date(message_header(b"Date: " + value + b"\r\n\r\n")) == expected


CHARSETS = ["utf-8", "utf-16", "utf-16be", "utf-32", "utf-7", "iso-2022-jp", "shift_jis", "gb18030", "koi8-r", None]
TEXT = "Grüße 日本語 текст\r\n"


@given(st.sampled_from(CHARSETS), st.data())
def test_text_in_pieces_is_decoded_like_a_whole_one(charset: str | None, data: st.DataObject) -> None:
    octets = data.draw(st.just((TEXT * 3).encode(charset or "latin-1", "replace")) | st.binary(max_size=40))
    ends = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=4)))
    pieces = [octets[start:end] for start, end in pairwise([0, *ends, len(octets)])]
    assume(charset is None or pieces[0][:4] == octets[:4] or not charset.startswith("utf"))  # a mark of byte order
    together = "".join(_decoded(pieces, charset))
    assert together == decode_text(octets, charset) or charset == "iso-2022-jp"  # which gives up on broken text


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64, 1 << 16])
@given(st.binary(max_size=100), st.data())
def test_transfer_encodings_are_decoded_in_pieces(piece_bytes: int, octets: bytes, data: st.DataObject) -> None:
    junk = data.draw(st.sampled_from([b"", b"\r\n", b"*", b" -"]))
    behind = data.draw(st.sampled_from([b"", b"\r\n", *([b"QUJD"] if len(octets) % 3 else [])]))  # after padding
    printable = quopri.encodestring(octets)  # which makes line ends alike, those of the first line
    encoded = {
        b"base64": (junk.join(re.findall(rb"(?s).{1,5}", base64.b64encode(octets))) + behind, octets),
        b"quoted-printable": (printable, quopri.decodestring(printable)),
    }
    with patch("replicator.imap.text.decoding._PIECE_BYTES", piece_bytes):
        for name, (text, expected) in encoded.items():
            part = parse(b"Content-Type: text/plain\nContent-Transfer-Encoding: " + name + b"\n\n" + text)
            assert b"".join(_transfer_decoded(part)) == expected


@given(st.binary(max_size=60) | st.text("QUJD=*\n", max_size=40).map(str.encode), st.integers(1, 10))
def test_broken_encodings_are_decoded_in_pieces_as_at_once(text: bytes, piece_bytes: int) -> None:
    part = parse(b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n" + text)
    with patch("replicator.imap.text.decoding._PIECE_BYTES", piece_bytes):
        decoded = b"".join(_transfer_decoded(part))
    with contextlib.suppress(binascii.Error):
        assert decoded == binascii.a2b_base64(text)
        return
    with contextlib.suppress(binascii.Error):
        assert decoded == binascii.a2b_base64(text + b"==")


def test_no_step_of_decoding_takes_more_than_a_piece() -> None:
    for encoding, encoded in {
        b"8bit": "Grüße ".encode() * 100_000,
        b"base64": base64.encodebytes("Grüße ".encode() * 100_000),
        b"quoted-printable": b"Gr=C3=BC=C3=9Fe " * 50_000,  # in one line
    }.items():
        head = b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: " + encoding + b"\n\n"
        pieces = part_text(parse(head + encoded))
        assert max(map(len, pieces)) <= 64 * KIB
        assert len(pieces) >= len(encoded) // (64 * KIB)
        assert set("".join(pieces).split()) == {"Grüße"}


def test_missing_date_gives_no_sent_date() -> None:
    assert sent_date(message_header(b"Subject: x\r\n\r\n")) is None


FORWARDED = (
    b"Subject: outer\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\npreamble\r\n"
    b"--x\r\nContent-Type: text/html; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    b"Gr=FCn\r\n"
    b"--x\r\nContent-Type: application/pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    + base64.b64encode(b"binary")
    + b"\r\n--x\r\nContent-Type: message/rfc822\r\n\r\nSubject: =?utf-8?q?inner?=\r\n\r\nnested\r\n--x--\r\n"
)


def test_body_search_covers_text_parts_and_headers_of_nested_messages() -> None:
    text = ReadableText(ParsedBody(Skeleton(FORWARDED)), WorkMeter(1000))
    for wanted in ("grün", "subject: inner\r\n", "nested"):
        assert text.in_body(casemap(wanted))
        assert not text.in_header(casemap(wanted))
    for wanted in ("outer", "preamble", "binary", "nested--"):
        assert not text.in_body(casemap(wanted))
    assert text.value(Column(texts, b"subject")) == casemap("outer")
