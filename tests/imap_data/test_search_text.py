"""Search texts: SEARCH finds the same by them as in the body, whatever the charset, the structure, and the key."""

from __future__ import annotations

import base64
import hashlib
import quopri
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicator.imap.matching.bounds import KeptText, ReadableText
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.outline import MAX_FIELDS
from replicator.imap.rendering.search_text import (
    SEARCH_TEXTS,
    TEXT_MAX_BYTES,
    VERSION,
    SearchText,
    encoded,
    search_text_of,
)
from replicator.imap.text.casemap import casemap
from replicator.imap.work_meter import WorkMeter
from replicator.mime.skeleton import Gap, Skeleton
from tests.effort import examples
from tests.imap_data.hard_mails import HARD_MAILS

ODD = [
    "ß",
    "ẞ",
    "SS",
    "İ",
    "\N{LATIN SMALL LETTER DOTLESS I}",
    "i̇",
    "ﬁ",
    "é",
    "é",
    "\N{COMBINING ACUTE ACCENT}",
    "Σ",
    "ς",
    "ǆ",
    "ǅ",
    "\0",
    "�",
]
ODD += [
    '"',
    "'",
    '""',
    "*",
    "^",
    "(",
    ")",
    "AND",
    "NEAR(",
    "-",
    ":",
    "\\",
    "%",
    "_",
    "\ud800",
    "\udc00",
    "𐐨",
    "가",
    "\r\n",
]
ENCODERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"8bit": bytes,
    b"base64": base64.encodebytes,
    b"quoted-printable": quopri.encodestring,
}
CHARSETS = ["utf-8", "iso-8859-1", "iso-8859-9", "koi8-r", "utf-16", "utf-7", "shift_jis", "us-ascii", "x-none", None]

texts = st.lists(st.sampled_from([*ODD, "ab", "A", "b ", " "]) | st.characters(), max_size=12).map("".join)
wanted_texts = texts.map(lambda text: text.encode(errors="ignore").decode())  # what a client can send


@st.composite
def parts(draw: st.DrawFn, depth: int = 0) -> bytes:
    """A part or message, with its header."""
    if depth < 3 and draw(st.integers(0, 2)) == 0:
        inner = draw(st.lists(parts(depth + 1), max_size=3))
        if draw(st.booleans()):
            return b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n" % depth + b"".join(
                b"\r\n--b%d\r\n%b" % (depth, part) for part in inner
            )
        return b"Content-Type: message/rfc822\r\n\r\n" + b"".join(inner[:1])
    charset = draw(st.sampled_from(CHARSETS))
    text = draw(texts).encode("utf-8" if charset in {None, "x-none"} else charset, "ignore")
    kind = draw(st.sampled_from([b"text/plain", b"text/html", b"application/x-a"]))
    encoding = draw(st.sampled_from([*ENCODERS]))
    named = b"" if charset is None else b"; charset=" + charset.encode()
    subject = draw(texts).encode("utf-8", "replace").replace(b"\r\n", b"")
    head = b"Subject: %b\r\nContent-Type: %b%b\r\nContent-Transfer-Encoding: %b\r\n\r\n"
    return head % (subject, kind, named, encoding) + ENCODERS[encoding](text)


def told(raw: bytes, wanted: str) -> tuple[tuple[bool | None, bool | None], tuple[bool, bool]]:
    """Return what the search text tells of the key, in the header and in the body, and what the body tells."""
    key, work = casemap(wanted), WorkMeter(10**9)
    kept = KeptText(None, SearchText.unpack(search_text_of(Skeleton(raw))), work)
    body = ReadableText(ParsedBody(Skeleton(raw)), work)
    return (kept.in_header(key), kept.in_body(key)), (body.in_header(key), body.in_body(key))


@settings(max_examples=examples(300, 3000), deadline=None)
@given(raw=parts(), wanted=wanted_texts)
@example(raw=b"\r\nstra\xc3\x9fe", wanted="STRASSE")
@example(raw=b"\r\na\0b", wanted="A\0B")
@example(raw=b"Content-Type: text/plain; charset=utf-7\r\n\r\n+2AA-", wanted="�")
def test_search_text_tells_what_the_body_tells(raw: bytes, wanted: str) -> None:
    by_search_text, by_body = told(raw, wanted)
    assert by_search_text == by_body


@settings(max_examples=examples(200, 2000), deadline=None)
@given(raw=parts(), data=st.data())
def test_search_text_tells_what_is_in_the_body(raw: bytes, data: st.DataObject) -> None:
    """Keys that occur in the message match alike by its search text and by its body."""
    whole = raw.decode("utf-8", "ignore")
    start = data.draw(st.integers(0, len(whole)))
    by_search_text, by_body = told(raw, whole[start : start + data.draw(st.integers(0, 8))])
    assert by_search_text == by_body


def test_halves_of_characters_are_kept_apart() -> None:
    assert encoded("?") not in encoded("\ud800")
    assert encoded("\ud800") not in encoded("\udc00")
    assert encoded("\ud83d\ude00") != encoded("\N{GRINNING FACE}")


@given(text=st.text(st.characters() | st.sampled_from(["\ud800", "\udc00", "\ud83d", "\ude00"])), data=st.data())
def test_encoded_text_contains_what_the_text_contains(text: str, data: st.DataObject) -> None:
    part = data.draw(st.just(text[1:-1]) | st.text(st.sampled_from([*text, "\ud83d", "\ude00", "😀"]), max_size=3))
    assert (encoded(part) in encoded(text)) is (part in text)


@pytest.mark.parametrize("raw", HARD_MAILS.values(), ids=[*HARD_MAILS])
def test_search_text_of_a_hard_mail_tells_what_its_body_tells(raw: bytes) -> None:
    for wanted in ("", "e", "gr", "hello", "ü", "=?", "\0"):
        by_search_text, by_body = told(raw, wanted)
        assert by_search_text in {by_body, (None, None)}


def test_most_hard_mails_have_search_texts() -> None:
    assert sum(bool(search_text_of(Skeleton(raw))) for raw in HARD_MAILS.values()) > 0.9 * len(HARD_MAILS)


def test_bodies_without_search_text() -> None:
    assert not search_text_of(Skeleton(b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n"))
    assert not search_text_of(Skeleton(b"\r\n" + b"x" * (TEXT_MAX_BYTES + 1)))
    assert not search_text_of(Skeleton(b"A: %b\r\n\r\n" % (b"x" * TEXT_MAX_BYTES)))
    assert search_text_of(Skeleton(b"A: b\r\n" * MAX_FIELDS + b"\r\n"))
    assert search_text_of(Skeleton(b"Content-Type: a/b\r\n\r\n" + b"x" * (TEXT_MAX_BYTES + 1)))


MIXED = (
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\ntext"
    b"\r\n--b\r\nContent-Type: image/png\r\n\r\n\r\n--b--\r\n"
)


@pytest.mark.parametrize(
    ("skeleton", "lacks"),
    [
        (Skeleton(MIXED), False),
        (Skeleton(MIXED, (Gap(MIXED.index(b"\r\n--b--"), 9, 0),)), False),
        (Skeleton(MIXED, (Gap(MIXED.index(b"text"), 9, 0),)), True),
        (Skeleton(MIXED, header_only=True), True),
        (Skeleton(MIXED, lacks_header=True), True),
    ],
)
def test_skeleton_lacks_text_if_that_is_in_a_gap(skeleton: Skeleton, *, lacks: bool) -> None:
    assert SEARCH_TEXTS.lacks_text(skeleton) is lacks


def test_version_rises_with_each_change_of_what_search_texts_tell() -> None:
    """On failure, increase VERSION, so that nodes make their search texts anew; or the hard mails have changed."""
    made = hashlib.sha256(b"".join(search_text_of(Skeleton(raw)) for raw in HARD_MAILS.values())).hexdigest()
    assert (VERSION, made[:16]) == (1, "9e5902bc5bfdaa29")
