from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.imap.ordering.header_facts import (
    MAX_COMPARED,
    display,
    mailbox,
    message_id,
    references,
    sent_ms,
    subject,
)
from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.rendering.envelope import envelope
from replicator.imap.text.decoding import header_text, part_text, sent_date
from replicator.mime.header import MAX_FIELDS, MAX_PARAMETERS
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import MAX_BOUNDARY, MAX_DEPTH, MAX_PARTS, MESSAGE_COST, Part, parse
from tests.imap_data.corpus import check_spans, message_header

MEGABYTE = 1_000_000

_PIECES = [
    b"Content-Type: ",
    b"multipart/mixed",
    b"multipart/digest",
    b"message/rfc822",
    b"text/plain",
    b"; boundary=b",
    b'; boundary="b',
    b"; boundary*0*=b",
    b"; charset*1=x; charset*=utf-7",
    b"; charset=punycode",
    b"Content-Transfer-Encoding: base64",
    b"Content-Transfer-Encoding: quoted-printable",
    b"Content-Disposition: a; b=c",
    b"Date: Mon, 31 Feb 99999 25:61:61 +9999 (x",
    b"From: a: b <@c,@d:e",
    b"Subject: =?utf-8?b?!?= =?x?q?=?=",
    b"Subject: [fwd: re [x] : (fwd)]",
    b"References: <a@b><",
    b'Message-ID: <"\\',
    b"--b",
    b"--b--",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\x00",
    b"\xff",
    b"=",
    b"text",
]


def read_all(raw: bytes) -> Part:
    """Parse the body and make all data that IMAP can ask for."""
    part = parse(raw)
    check_spans(part, 0, len(raw))
    body_structure(part, Skeleton(part.header.raw), extended=True)
    for inner in part.walk():
        envelope(inner.header)
        header_text(inner.header)
        sent_date(inner.header)
        assert len(subject(inner.header, b"subject")[0]) <= MAX_COMPARED
        assert len(mailbox(inner.header, b"to") + display(inner.header, b"from")) <= 2 * MAX_COMPARED
        assert len(references(inner.header, b"references")) <= len(inner.header.raw)
        assert sent_ms(inner.header, b"date") is None or message_id(inner.header, b"message-id") != b""
        if not inner.children and inner.nested is None:
            part_text(inner)
    return part


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.binary(max_size=4)), max_size=30).map(b"".join))
def test_no_body_raises_an_error(raw: bytes) -> None:
    read_all(raw)


def nested_multiparts(levels: int) -> bytes:
    head = b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n"
    return b"".join(head % (level, level) for level in range(levels)) + b"\r\nhello"


def nested_messages(levels: int) -> bytes:
    return b"Content-Type: message/rfc822\r\n\r\n" * levels + b"Subject: x\r\n\r\nhello"


def depth(part: Part) -> int:
    within = part.children if part.nested is None else (part.nested,)
    return 1 + max(map(depth, within), default=0)


@pytest.mark.parametrize("make", [nested_multiparts, nested_messages])
def test_part_nested_too_deeply_is_opaque(make: Callable[[int], bytes]) -> None:
    part = read_all(make(MAX_DEPTH + 500))
    assert depth(part) == MAX_DEPTH + 1
    innermost = list(part.walk())[-1]
    assert innermost.content_type.subtype == b"OCTET-STREAM"
    assert innermost.body != b""
    assert list(parse(make(MAX_DEPTH)).walk())[-1].content_type.value == b"TEXT"


def flat(parts: int) -> bytes:
    return b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * parts + b"--b--"


def test_multipart_with_too_many_parts_is_opaque() -> None:
    assert len(read_all(flat(MAX_PARTS)).children) == MAX_PARTS
    part = read_all(flat(MAX_PARTS + 1))
    assert (part.content_type.subtype, part.children) == (b"OCTET-STREAM", ())


def test_parts_are_counted_over_the_whole_message() -> None:
    inner = flat(MAX_PARTS // 2)
    raw = b"Content-Type: multipart/mixed; boundary=o\r\n\r\n" + (b"--o\r\n" + inner + b"\r\n") * 3 + b"--o--"
    assert [len(child.children) for child in read_all(raw).children] == [MAX_PARTS // 2, 0, 0]


def test_nested_message_counts_as_several_parts() -> None:
    count = MAX_PARTS // (MESSAGE_COST + 1)
    raw = b"Content-Type: multipart/digest; boundary=b\r\n\r\n" + b"--b\r\n\r\nA: b\r\n\r\nx\r\n" * (count + 1)
    children = read_all(raw).children
    assert [child.nested is None for child in children] == [False] * (count - 1) + [True] * 2


def test_boundary_beyond_the_limit_is_ignored() -> None:
    for length, parts in ((MAX_BOUNDARY, 1), (MAX_BOUNDARY + 1, 0)):
        boundary = b"b" * length
        raw = b"Content-Type: multipart/mixed; boundary=%b\r\n\r\n--%b\r\n\r\nx" % (boundary, boundary)
        assert len(read_all(raw).children) == parts


def test_fields_beyond_the_limit_are_ignored() -> None:
    header = message_header(b"A:\n" * (MAX_FIELDS - 1) + b"B: yes\nC: no\n\n")
    assert (header.value(b"b"), header.value(b"c")) == (b"yes", None)
    assert header.raw[header.fields_end :] == b"\n"
    fewer, more = header.showing(MAX_FIELDS - 1), header.showing(MAX_FIELDS + 1)
    assert (fewer.value(b"a"), fewer.value(b"b"), more.value(b"c")) == (b"", None, b"no")


def test_parts_do_not_depend_on_the_fields_that_are_shown() -> None:
    raw = b"A: 1\nContent-Type: multipart/mixed; boundary=b\nC: no\n\n--b\nA: 2\nB: yes\n\nx\n--b--\n"
    for shown in (1, 2, MAX_FIELDS):
        whole = parse(raw, shown)
        assert whole.content_type.value == b"MULTIPART"
        assert whole.header.value(b"c") == (b"no" if shown > 2 else None)
        assert whole.children[0].header.value(b"b") == (b"yes" if shown > 1 else None)


def test_parameters_beyond_the_limit_are_ignored() -> None:
    part = parse(b"Content-Type: a/b" + b";c=d" * (MAX_PARAMETERS + 1) + b"\n\n")
    assert len(part.content_type.parameters) == MAX_PARAMETERS


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        (b"", b"a:\n"),
        (b"a:", b" \n"),
        (b"", b"a"),
        (b"a", b" "),
        (b"Content-Type: text/plain", b";"),
        (b"Content-Type: text/plain", b';a="\\"'),
        (b"Content-Type: text/plain", b";a "),
        (b"Content-Type: text/plain;", b" "),
        (b"Content-Type: text/plain;a=", b" ("),
        (b"Content-Type: text/plain;a", b"*0"),
        (b"Content-Transfer-Encoding: 7bit ()", b" "),
        (b"Content-Transfer-Encoding: 7bit (", b" "),
        (b"Content-Type: multipart/mixed; boundary=a\n\n", b"--a\n"),
        (b"Content-Type: multipart/mixed; boundary=a\n\n", b"--a \tx\n"),
        (b"Content-Type: multipart/mixed; boundary=a\n\n--a", b" "),
        (b"Content-Type: multipart/mixed; boundary=\n\n", b"--\n"),
        (nested_multiparts(60), b"--b9\n"),
        (b"Subject: ", b"=?a?q?"),
        (b"Subject: ", b"=?a?q?b?= "),
        (b"Subject: ", b"=?"),
        (b"Subject: ", b"[a]"),
        (b"Subject: ", b"[fwd:"),
        (b"Subject: x", b"(fwd)"),
        (b"Subject: re", b"[a] "),
        (b"References: ", b"<"),
        (b"References: ", b"<a>"),
        (b"References: <", b"a"),
        (b"Message-ID: ", b'<"'),
        (b"From: ", b"(a"),
        (b"Subject: ", b"=?utf-8?b?a?="),
        (b"Subject: =?a?q?", b"b"),
        (b"Date: ", b"1 "),
        (b"Date: ", b"("),
        (b"To: ", b"a:;"),
        (b"Content-Transfer-Encoding: base64\n\n", b"a="),
        (b"Content-Transfer-Encoding: quoted-printable\n\n", b"=\n"),
        (b"Content-Type: text/plain; charset=punycode\n\n", b"a-"),
        (b"Content-Type: text/plain; charset=iso-2022-jp\n\n", b"\x1b$B"),
    ],
)
def test_parsing_takes_linear_time(head: bytes, unit: bytes) -> None:
    """With quadratic time, this test would take hours."""
    raw = head + unit * (MEGABYTE // len(unit))
    assert len(list(read_all(raw).walk())) <= MAX_PARTS
