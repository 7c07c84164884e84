from __future__ import annotations

import pytest

from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.wire.fetch_items import Adjacent, Value
from replicator.imap.wire.responses import fetch_response, without_body
from replicator.mime.header import TEXT_PLAIN, ContentType
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import parse

NO_EXTENSION = (None, None, None, None)
NO_ENVELOPE = (None,) * 10


def structure(raw: bytes, *, extended: bool = False) -> Value:
    return body_structure(parse(raw), Skeleton(raw), extended=extended)


def basic(kind: str, size: int, *rest: Value, parameters: Value = None, encoding: str = "7BIT") -> tuple[Value, ...]:
    main, _, sub = kind.encode().partition(b"/")
    return (main, sub, parameters, None, None, encoding.encode(), size, *rest)


PLAIN = (b"CHARSET", b"US-ASCII")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", basic("TEXT/PLAIN", 0, 0, parameters=PLAIN)),
        (b"\r\na\r\nb\r\n", basic("TEXT/PLAIN", 6, 2, parameters=PLAIN)),
        (b"\r\na\nb", basic("TEXT/PLAIN", 3, 1, parameters=PLAIN)),
        (b"Content-Type: text/html\r\n\r\n\xe4\r\n", basic("TEXT/HTML", 3, 1, parameters=PLAIN)),
        (
            b"Content-Type: text/plain; format=flowed\r\n\r\nx",
            basic("TEXT/PLAIN", 1, 0, parameters=(b"format", b"flowed", *PLAIN)),
        ),
        (
            b"Content-Type: text/plain; Charset*=''utf-8\r\n\r\nx",
            basic("TEXT/PLAIN", 1, 0, parameters=(b"Charset*", b"''utf-8")),
        ),
        (b"Content-Type: Image / Png ; name=x\r\n\r\n....", basic("IMAGE/PNG", 4, parameters=(b"name", b"x"))),
        (b"Content-Type: nonsense\r\n\r\nx", basic("TEXT/PLAIN", 1, 0, parameters=PLAIN)),
        (b"Content-Type:\r\n\r\nx", basic("TEXT/PLAIN", 1, 0, parameters=PLAIN)),
        (b"Content-Type: /x\r\n\r\nx", basic("TEXT/PLAIN", 1, 0, parameters=PLAIN)),
        (
            b"Content-Transfer-Encoding: base64 (yes)\r\n\r\nx",
            basic("TEXT/PLAIN", 1, 0, parameters=PLAIN, encoding="BASE64"),
        ),
        (b"Content-Transfer-Encoding: 8 bit\r\n\r\nx", basic("TEXT/PLAIN", 1, 0, parameters=PLAIN)),
        (b"Content-Type: multipart/mixed\r\n\r\nno boundary", basic("TEXT/PLAIN", 11, 0, parameters=PLAIN)),
        (b"Content-Type: multipart/mixed; boundary=\r\n\r\n--\r\nx", basic("TEXT/PLAIN", 5, 1, parameters=PLAIN)),
        (b'Content-Type: multipart/mixed; boundary=" "\r\n\r\n--\r\n', basic("TEXT/PLAIN", 4, 1, parameters=PLAIN)),
        (b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--c\r\nx", basic("TEXT/PLAIN", 6, 1, parameters=PLAIN)),
        (
            b"Content-Type: message/rfc822\r\n\r\nContent-Type: text/x\r\n\r\nhello\r\n",
            basic("MESSAGE/RFC822", 31, NO_ENVELOPE, basic("TEXT/X", 7, 1, parameters=PLAIN), 3),
        ),
        (b"Content-Type: message/partial\r\n\r\nx\r\n", basic("MESSAGE/PARTIAL", 3)),
    ],
)
def test_structure_of_single_parts(raw: bytes, expected: Value) -> None:
    assert structure(raw) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"; charset=us-ascii (Plain text)", (b"charset", b"us-ascii")),
        (b'; name="a;b\\"c\\\\d"; x=y', (b"name", b'a;b"c\\d', b"x", b"y")),
        (b"; name=My File (1).doc ; x", (b"name", b"My File (1).doc")),
        (b'; name="never ends; x=y', (b"name", b"never ends; x=y")),
        (b";;; ;a =\r\n\t b;", (b"a", b"b")),
        (b";=b", None),
        (b"; a=", (b"a", b"")),
        (b"; n=\xc3\xa4", (b"n", b"\xc3\xa4")),
    ],
)
def test_parameters_are_unquoted_and_otherwise_unchanged(text: bytes, expected: Value) -> None:
    value = structure(b"Content-Type: a/b" + text + b"\r\n\r\n")
    assert isinstance(value, tuple)
    assert value[2] == expected


# RFC 2231 section 6: an IMAP server decodes continuations. The results are those of Dovecot.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"; name*0*=utf-8''a%20; name*1=b", (b"name*", b"utf-8''a%20b")),
        (b"; name*1=cd; x=y; Name*0=ab", (b"x", b"y", b"Name", b"abcd")),
        (b"; name*0=a b; name*1*=%20b", (b"name*", b"''a%20b%20b")),
        (b"; name*0*=utf-8''a; name*1=\"*'%/\\\"; \xe4\"", (b"name*", b"utf-8''a%2A%27%25%2F%22%3B%20%E4")),
        (b"; name*0=only", (b"name", b"only")),
        (b"; name*=utf-8''%c3%a4; name=a", (b"name*", b"utf-8''%c3%a4", b"name", b"a")),
        (b"; name*0=a; name*2=c; x*0=1", (b"name*0", b"a", b"name*2", b"c", b"x", b"1")),
        (b"; name*1=a; name*2=c", (b"name*1", b"a", b"name*2", b"c")),
        (b"; name*0*=u''a; name*0=b; name*1=c", (b"name*0*", b"u''a", b"name*0", b"b", b"name*1", b"c")),
        (b"; a*b=c; a**=d; *0=x", (b"a*b", b"c", b"a**", b"d", b"*0", b"x")),
        (b"".join(b"; n*%d=%d" % (n, n % 10) for n in range(200)), (b"n", b"0123456789" * 20)),
    ],
)
def test_continued_parameters_are_one(text: bytes, expected: bytes) -> None:
    raw = b"Content-Type: a/b" + text + b"\r\nContent-Disposition: attachment" + text + b"\r\n\r\n"
    value = structure(raw, extended=True)
    assert isinstance(value, tuple)
    assert value[2] == expected
    assert value[-3] == (b"attachment", expected)


def test_parts_are_found_behind_line_ends_of_two_carriage_returns() -> None:
    raw = b"Content-Type: multipart/mixed; boundary=b\n\nx\n--b\n\none\n--b \nContent-Type: a/b\n\ntwo\n--b--\n"
    part = parse(raw.replace(b"\n", b"\r\r\n"))
    assert [child.body for child in part.children] == [b"one\r", b"two\r"]
    assert [child.content_type.value for child in part.children] == [b"TEXT", b"A"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", NO_EXTENSION),
        (b"Content-MD5: abc==\r\n", (b"abc==", None, None, None)),
        (b"Content-Disposition: attachment\r\n", (None, (b"attachment", None), None, None)),
        (
            b"Content-Disposition: inline; filename=a.txt; size=3\r\n",
            (None, (b"inline", (b"filename", b"a.txt", b"size", b"3")), None, None),
        ),
        (b"Content-Disposition:\r\n", NO_EXTENSION),
        (b"Content-Language: en\r\n", (None, None, b"en", None)),
        (b"Content-Language: en, de ,fr\r\n", (None, None, (b"en", b"de", b"fr"), None)),
        (b"Content-Location: http://x/\r\n", (None, None, None, b"http://x/")),
    ],
)
def test_extended_structure_has_the_extension_data(header: bytes, expected: tuple[Value, ...]) -> None:
    raw = b"Content-Type: a/b\r\n" + header + b"\r\n"
    assert structure(raw, extended=True) == (*basic("A/B", 0), *expected)
    assert structure(raw) == basic("A/B", 0)


def test_structure_has_identifier_and_description() -> None:
    raw = b"Content-Type: a/b\r\nContent-ID: <1@x>\r\nContent-Description: d\r\n  e\r\n\r\n"
    assert structure(raw) == (b"A", b"B", None, b"<1@x>", b"d  e", b"7BIT", 0)


MIXED = (
    b'Content-Type: Multipart/Mixed; boundary="-=x y"\r\nContent-Disposition: inline\r\n\r\npreamble\r\n'
    b"---=x y\r\n\r\none\r\n"
    b"---=x y  \r\nContent-Type: multipart/digest; boundary=b\r\n\r\n"
    b"--b\r\n\r\nSubject: s\r\n\r\nt\r\n--b--\r\n"
    b"---=x y--\r\nepilogue\r\n---=x y\r\nnot a part"
)


def test_structure_of_multiparts() -> None:
    subject = (None, b"s", *(None,) * 8)
    one = basic("TEXT/PLAIN", 3, 0, parameters=PLAIN)
    inner = basic("TEXT/PLAIN", 1, 0, parameters=PLAIN)
    digest = basic("MESSAGE/RFC822", 15, subject, inner, 2)
    assert structure(MIXED) == (Adjacent((one, (Adjacent((digest,)), b"DIGEST"))), b"MIXED")

    extended_digest = (*basic("MESSAGE/RFC822", 15, subject, (*inner, *NO_EXTENSION), 2), *NO_EXTENSION)
    assert structure(MIXED, extended=True) == (
        Adjacent(
            (
                (*one, *NO_EXTENSION),
                (Adjacent((extended_digest,)), b"DIGEST", (b"boundary", b"b"), None, None, None),
            )
        ),
        b"MIXED",
        (b"boundary", b"-=x y"),
        (b"inline", None),
        None,
        None,
    )


def test_structure_is_printed_by_the_grammar() -> None:
    printed = b"".join(without_body(fetch_response(7, [(b"BODY", structure(MIXED))])))
    assert printed == (
        b'* 7 FETCH (BODY (("TEXT" "PLAIN" ("CHARSET" "US-ASCII") NIL NIL "7BIT" 3 0)'
        b'(("MESSAGE" "RFC822" NIL NIL NIL "7BIT" 15 (NIL "s" NIL NIL NIL NIL NIL NIL NIL NIL) '
        b'("TEXT" "PLAIN" ("CHARSET" "US-ASCII") NIL NIL "7BIT" 1 0) 2) "DIGEST") "MIXED"))\r\n'
    )


@pytest.mark.parametrize(
    ("body", "contents"),
    [
        (b"--b\r\n\r\n1\r\n--b\r\n\r\n2", [b"1", b"2"]),  # no end
        (b"--b\r\n\r\n1\r\n--b--", [b"1"]),
        (b"--b\r\n--b\r\n\r\n1\r\n--b--", [b"1"]),  # a delimiter twice
        (b"--b\n\n1\n--b\r\n\n2\r\n--b--\n", [b"1", b"2"]),
        (b"--b\r\n\r\n--b--x\r\n --b\r\n--b--", [b"--b--x\r\n --b"]),
        (b"--b\r\n\r\n\r\n--b--", [b""]),
        (b"--b\r\n\r\n\r\n\r\n--b--", [b"\r\n"]),
        (b"--b\r\n--b--", None),
        (b"--b--", None),
        (b"x--b\r\n\r\n1\r\n--b--", None),
        (b"--b", [b""]),
    ],
)
def test_multipart_is_split_at_its_delimiters(body: bytes, contents: list[bytes] | None) -> None:
    part = parse(b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + body)
    assert [child.body for child in part.children] == (contents or [])
    assert part.content_type.value == (b"MULTIPART" if contents else b"TEXT")


def test_outer_delimiter_ends_all_inner_parts() -> None:
    raw = (
        b"Content-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\nContent-Type: multipart/mixed; boundary=i\r\n\r\n"
        b"--i\r\n\r\n1\r\n--o\r\n\r\n2\r\n--i\r\n\r\n3\r\n--o--\r\n"
    )
    part = parse(raw)
    assert [child.body for child in part.children[0].children] == [b"1"]
    assert part.children[1].body == b"2\r\n--i\r\n\r\n3"


@pytest.mark.parametrize(
    "parameter",
    [
        b"boundary=x",
        b"BOUNDARY=x",
        b'boundary="x  "',
        b"boundary*=us-ascii'en'%78",
        b"boundary*0=x; boundary*1=",
        b"a=b;boundary=x (c)",
    ],
)
def test_boundary_is_read_in_all_its_forms(parameter: bytes) -> None:
    assert len(parse(b"Content-Type: multipart/mixed; " + parameter + b"\r\n\r\n--x\r\n\r\n1\r\n--x--").children) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a/b; x=plain; x*=u'e'other", b"plain"),
        (b"a/b; x*=us-ascii'en'a%20b", b"a b"),
        (b"a/b; x*1=cd; x*0=ab", b"abcd"),
        (b"a/b; X*1*=%20b; x*0*=u'e'a; y=3", b"a b"),
        (b"a/b; x*=bare", b"bare"),
        (b"a/b; x*0=%20", b"%20"),
        (b"a/b; xx*=a; *=b", None),
    ],
)
def test_continued_parameters_are_joined(text: bytes, expected: bytes | None) -> None:
    assert ContentType.parse_or(text, TEXT_PLAIN).decoded_parameter(b"x") == expected
