"""Values in answers of IMAP servers, as RFC 9051 has them, and anything else."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.cli.sources.imap.urls import parse_imap_url
from replicator.cli.sources.imap.values import Answer, SenselessAnswerError, Value, answers, pairs, time_ms, values


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b'(\\HasNoChildren \\Sent) "/" INBOX'], [[b"\\HasNoChildren", b"\\Sent"], b"/", b"INBOX"]),
        ([b'() NIL "NIL"'], [[], None, b"NIL"]),
        ([b'"a \\"quoted\\" \\\\ name"'], [b'a "quoted" \\ name']),
        ([(b'() "/" {5}', b"a\r\nb("), b" x"], [[], b"/", b"a\r\nb(", b"x"]),
        (
            [(b"7 (UID 3 BODY[]<0> {2}", b"hi"), b" FLAGS (A))"],
            [b"7", [b"UID", b"3", b"BODY[]<0>", b"hi", b"FLAGS", [b"A"]]],
        ),
        ([(b"(BINARY[] ~{2}", b"\0\0"), b")"], [[b"BINARY[]", b"\0\0"]]),
        ([b""], []),
    ],
)
def test_values_are_read(parts: list[Answer], expected: list[Value]) -> None:
    assert values(parts) == expected


@given(
    st.lists(st.binary(max_size=50) | st.tuples(st.binary(max_size=20), st.binary(max_size=20)), min_size=1, max_size=5)
)
def test_anything_is_values_or_makes_no_sense(parts: list[Answer]) -> None:
    try:
        for answer in answers(parts):
            for value in answer:
                pairs(value)
    except SenselessAnswerError:
        pass


@pytest.mark.parametrize("piece", [b"(", b'"', b'"\\', b"[", b"{1}", b" ", b"a", b")", b"()", b"\xff"])
def test_long_answers_take_time_in_proportion(piece: bytes) -> None:
    begun = time.monotonic()
    with suppress(SenselessAnswerError):
        values([piece * (1_000_000 // len(piece))])
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        (b"17-Nov-1994 00:49:30 +0100", 785029770000),
        (b" 1-Feb-2024 10:20:30 +0000", 1706782830000),
        (b"31-Feb-2024 10:20:30 +0000", None),
        (b"01-Foo-2024 10:20:30 +0000", None),
        (b"01-Jan-1900 10:20:30 +0000", 0),
        (b"01-Jan-2024 99:99:99 +9999", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_dates_are_read_where_a_calendar_has_them(date: bytes, expected: int | None) -> None:
    assert time_ms(date) == expected


def test_urls_name_a_server_and_a_user() -> None:
    url = parse_imap_url("imaps://al%40x:p%2Fw@Mail.example.org")
    assert (url.host, url.port, url.tls, url.user, url.password) == ("mail.example.org", 993, True, "al@x", "p/w")
    assert "p/w" not in f"{url} {url!r}"
    assert str(parse_imap_url("IMAP://bob@[::1]:1143/")) == "imap://bob@[::1]:1143"
