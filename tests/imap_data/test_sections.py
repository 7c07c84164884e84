from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.imap.rendering.fetch_answers import ParsedBody, section
from replicator.imap.wire.fetch_items import BodySection, Partial, SectionText
from replicator.mime.skeleton import Skeleton

HEADER, TEXT, MIME = SectionText.HEADER, SectionText.TEXT, SectionText.MIME


@dataclass(frozen=True)
class Known:
    """A part with known octets: of its header, of its body, and of each section in it by part number."""

    header: bytes
    body: bytes
    sections: dict[tuple[int, ...], tuple[bytes, bytes]]


def under(number: int, known: Known) -> dict[tuple[int, ...], tuple[bytes, bytes]]:
    inner = {(number, *path): octets for path, octets in known.sections.items()}
    return {(number,): (known.header, known.body), **inner}


# Some lines begin with two hyphens, but none is a delimiter of a multipart made below.
_LINE = st.sampled_from([b"", b"hello", b"--", b"--other", b"--b", b"-", b"a: b", b"\xff\x00", b"--b1x", b"--b1 -- x"])
_END = st.sampled_from([b"\r\n", b"\n"])


@st.composite
def leaves(draw: st.DrawFn, level: int) -> Known:
    del level
    end = draw(_END)
    header = draw(st.sampled_from([b"", b"Content-Type: text/html%b", b"X: y%b continued%b"])).replace(b"%b", end) + end
    return Known(header, end.join(draw(st.lists(_LINE, max_size=5))), {})


@st.composite
def multiparts(draw: st.DrawFn, level: int) -> Known:
    end = draw(_END)
    boundary = b"b%d" % level  # a prefix of b1x, and never that of a multipart around this one
    delimiter = end + b"--" + boundary
    children = draw(st.lists(parts(level + 1), min_size=1, max_size=3))
    body = draw(st.sampled_from([b"", b"preamble"]))
    for child in children:
        body += delimiter + draw(st.sampled_from([b"", b" \t"])) + end + child.header + child.body
    body += (
        delimiter + b"--" + draw(st.sampled_from([b"", end, end + b"epilogue", end + b"--" + boundary + end + b"x"]))
    )
    header = b"Content-Type: multipart/mixed;%b boundary=%b%b%b" % (end, boundary, end, end)
    sections = {key: value for n, child in enumerate(children, 1) for key, value in under(n, child).items()}
    return Known(header, body, sections)


@st.composite
def messages(draw: st.DrawFn, level: int) -> Known:
    end = draw(_END)
    inner = draw(parts(level + 1))
    header = b"Content-Type: Message/RFC822%b%b" % (end, end)
    sections = inner.sections if inner.header.startswith(b"Content-Type: multipart") else under(1, inner)
    return Known(header, inner.header + inner.body, sections)


def parts(level: int) -> st.SearchStrategy[Known]:
    if level > 3:
        return leaves(level)
    return st.one_of(leaves(level), multiparts(level), messages(level))


@settings(deadline=None)
@given(known=multiparts(1))
def test_sections_have_the_octets_that_they_were_built_from(known: Known) -> None:
    raw = known.header + known.body
    parsed = ParsedBody(Skeleton(raw))
    assert section(parsed, BodySection()) == raw
    assert section(parsed, BodySection(text=HEADER)) == known.header
    assert section(parsed, BodySection(text=TEXT)) == known.body
    for path, (header, body) in known.sections.items():
        assert section(parsed, BodySection(path)) == body, path
        assert section(parsed, BodySection(path, MIME)) == header, path
        absent = section(parsed, BodySection((*path, 9)))
        assert absent is None, path


NESTED = (
    b"Subject: outer\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n"
    b"--x\r\n\r\none\r\n"
    b"--x\r\nContent-Type: message/rfc822\r\n\r\n"
    b"Subject: inner\r\nTo: a@b\r\n\r\ninner text\r\n"
    b"--x--\r\n"
)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (BodySection((1,)), b"one"),
        (BodySection((2, 1)), b"inner text"),
        (BodySection((2, 1), MIME), b"Subject: inner\r\nTo: a@b\r\n\r\n"),
        (BodySection((2,), HEADER), b"Subject: inner\r\nTo: a@b\r\n\r\n"),
        (BodySection((2,), TEXT), b"inner text"),
        (BodySection((2,), MIME), b"Content-Type: message/rfc822\r\n\r\n"),
        (BodySection((2,), SectionText.HEADER_FIELDS, ("SUBJECT",)), b"Subject: inner\r\n\r\n"),
        (BodySection((2,), SectionText.HEADER_FIELDS_NOT, ("SUBJECT",)), b"To: a@b\r\n\r\n"),
        (BodySection((1,), HEADER), None),
        (BodySection((1,), TEXT), None),
        (BodySection((1, 1)), None),
        (BodySection((3,)), None),
        (BodySection((0,)), None),
        (BodySection((2, 2)), None),
        (BodySection((2, 1, 1)), None),
        (BodySection((3,), MIME), None),
    ],
)
def test_sections_of_a_nested_message(item: BodySection, expected: bytes | None) -> None:
    assert section(ParsedBody(Skeleton(NESTED)), item) == expected


def test_message_without_parts_has_part_one() -> None:
    parsed = ParsedBody(Skeleton(b"Subject: x\r\n\r\nhello\r\n"))
    assert section(parsed, BodySection((1,))) == b"hello\r\n"
    assert section(parsed, BodySection((1,), MIME)) == b"Subject: x\r\n\r\n"
    assert section(parsed, BodySection((2,))) is None


def test_message_of_type_message_has_part_one() -> None:
    parsed = ParsedBody(Skeleton(b"Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nhello"))
    assert section(parsed, BodySection((1,))) == b"Subject: inner\r\n\r\nhello"
    assert section(parsed, BodySection((1,), HEADER)) == b"Subject: inner\r\n\r\n"
    assert section(parsed, BodySection((1, 1))) == b"hello"
    assert section(parsed, BodySection((1, 1, 1))) is None


FIELDS = b"From: a@b\r\nSubject: one\r\n two\r\nX : y\nSUBJECT: three\r\n\r\nbody"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("subject",), b"Subject: one\r\n two\r\nSUBJECT: three\r\n\r\n"),
        (("FROM", "X"), b"From: a@b\r\nX : y\n\r\n"),
        (("to",), b"\r\n"),
    ],
)
def test_header_fields_are_whole_and_unchanged(names: tuple[str, ...], expected: bytes) -> None:
    item = BodySection(text=SectionText.HEADER_FIELDS, fields=names)
    assert section(ParsedBody(Skeleton(FIELDS)), item) == expected


@settings(deadline=None)
@given(names=st.sets(st.sampled_from(["from", "Subject", "X", "other"])))
def test_header_fields_and_header_fields_not_divide_the_header(names: set[str]) -> None:
    halves = [
        section(ParsedBody(Skeleton(FIELDS)), BodySection(text=which, fields=tuple(names)))
        for which in (SectionText.HEADER_FIELDS, SectionText.HEADER_FIELDS_NOT)
    ]
    whole = section(ParsedBody(Skeleton(FIELDS)), BodySection(text=HEADER))
    assert isinstance(whole, bytes)
    lines = [half.removesuffix(b"\r\n").splitlines(keepends=True) for half in halves if isinstance(half, bytes)]
    assert sorted(lines[0] + lines[1]) == sorted(whole.removesuffix(b"\r\n").splitlines(keepends=True))


def test_header_fields_always_end_with_an_empty_line() -> None:
    item = BodySection(text=SectionText.HEADER_FIELDS, fields=("A",))
    assert section(ParsedBody(Skeleton(b"A: b\r\nno field\r\n")), item) == b"A: b\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "header"),
    [
        (b"", b""),
        (b"\r\n", b"\r\n"),
        (b"\r\nbody", b"\r\n"),
        (b"A: b", b"A: b"),
        (b"A: b\r\n", b"A: b\r\n"),
        (b"A: b\n\nbody", b"A: b\n\n"),
        (b"A: b\r\n \r\n\r\nbody", b"A: b\r\n \r\n\r\n"),
        (b"just text\r\n\r\nmore", b""),
        (b"From someone Mon\nA: b\n\nbody", b"From someone Mon\nA: b\n\n"),
        (b"A: b\r\n>From someone\r\nC: d\r\n\r\nbody", b"A: b\r\n>From someone\r\nC: d\r\n\r\n"),
        (b"A: b\r\nno field\r\nC: d\r\n\r\n", b"A: b\r\n"),
        (b" folded first\r\n\r\nbody", b""),
    ],
)
def test_header_ends_at_the_first_line_that_is_no_field(raw: bytes, header: bytes) -> None:
    parsed = ParsedBody(Skeleton(raw))
    assert section(parsed, BodySection(text=HEADER)) == header
    assert section(parsed, BodySection(text=TEXT)) == raw.removeprefix(header)


@settings(deadline=None)
@given(raw=st.binary(max_size=30), origin=st.integers(min_value=0, max_value=40), length=st.integers(1, 40))
def test_partial_is_a_slice(raw: bytes, origin: int, length: int) -> None:
    item = BodySection(partial=Partial(origin, length))
    assert section(ParsedBody(Skeleton(raw)), item) == raw[origin : origin + length]


def test_partial_of_a_missing_section_is_nil() -> None:
    assert section(ParsedBody(Skeleton(b"A: b\r\n\r\nc")), BodySection((2,), partial=Partial(0, 5))) is None
