"""Outlines tell what the bodies tell, octet for octet, or nothing."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Dot
from replicator.imap.rendering.fetch_answers import ParsedBody, fetch_value
from replicator.imap.rendering.outline import KEPT, MAX_FIELDS, VERSION, Outline, may_tell, outline_of, teller
from replicator.imap.rendering.thread_id import lone_thread
from replicator.imap.wire.fetch_items import Attribute, BodySection, FetchItem, Partial, Printed, SectionText
from replicator.imap.wire.responses import printed
from replicator.mail.view import Message
from replicator.mime.skeleton import Gap, Skeleton
from tests.imap_data.corpus import corpus
from tests.imap_data.hard_mails import HARD_MAILS

MESSAGE = Message(1, bytes(16), 1, frozenset(), 0, 0, bytes(32), Dot("dc1.1", 1), 0)

fields = partial(BodySection, (), SectionText.HEADER_FIELDS)
USUAL = ("From", "TO", "cc", "Bcc", "Subject", "Date", "Message-ID", "X-Priority", "References", "Content-Type", "")
ITEMS: list[FetchItem] = [
    Attribute.ENVELOPE,
    Attribute.BODYSTRUCTURE,
    Attribute.PREVIEW,
    Attribute.THREADID,
    fields(("REFERENCES",), peek=True),
    fields(USUAL),
    fields(USUAL, Partial(3, 40)),
    fields(("Subject",), Partial(10_000, 1)),
    fields(("Received", "Subject")),
    fields(("X-Nobody-Has-This",)),
]
UNTOLD: list[FetchItem] = [
    Attribute.BODY,
    Attribute.RFC822_HEADER,
    BodySection(),
    BodySection((1,), SectionText.HEADER_FIELDS, ("Subject",)),
    BodySection((), SectionText.HEADER_FIELDS_NOT, ("Subject",)),
]


def check(skeleton: Skeleton) -> int:
    """Check all that the outline tells against the body, with the least and the most fields; return how much it is."""
    outline, told = Outline.unpack(outline_of(skeleton)), 0
    for item in (*ITEMS, *UNTOLD):
        value = None if outline is None or not may_tell(item) else teller(item)(outline)
        if value is not None:
            told += 1
            value = value or b"(%b)" % lone_thread(MESSAGE).encode()
            for max_fields in (100, 100_000):
                assert printed(fetch_value(item, MESSAGE, ParsedBody(skeleton, max_fields))) == Printed((value,)), item
    return told


@pytest.mark.parametrize("raw", [*HARD_MAILS.values(), *corpus().values()])
def test_outline_of_a_hard_mail_tells_what_its_body_tells(raw: bytes) -> None:
    check(Skeleton(raw))


def test_outlines_of_most_hard_mails_tell_nearly_everything() -> None:
    told = [check(Skeleton(raw)) for raw in HARD_MAILS.values()]
    assert sum(count >= len(ITEMS) - 2 for count in told) > len(told) * 0.9


texts = st.text('ab:;<>@,"()=? \t\r\n\0ü', max_size=12)
names = st.sampled_from(["From ", "to:", "Subject :", "Received:", "X-A:", "Content-Type:", "DATE:", ":", ""])
pieces = st.lists(st.tuples(names, texts, st.sampled_from(["\r\n", "\n", "\r\r\n", "\r\n ", ""])), max_size=8)


@given(pieces, st.sampled_from(["\r\n", "\n", "\r\r\n", "", "x"]), texts)
def test_outline_of_any_header_tells_what_its_body_tells(
    header: list[tuple[str, str, str]], empty: str, content: str
) -> None:
    check(Skeleton(("".join("".join(piece) for piece in header) + empty + content).encode()))


def test_outline_counts_what_has_been_cut_out() -> None:
    head = b"Message-ID: <1@x>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n"
    skeleton = Skeleton(head + b"\r\n--b--\r\n", (Gap(len(head), 5_000_000, 65_000),))
    assert check(skeleton) == len(ITEMS) - 1, "all but the preview, whose text has been cut out"
    assert check(skeleton.knowing(skeleton.gaps[0], b"Hello")) == len(ITEMS)
    outline = Outline.unpack(outline_of(skeleton))
    assert outline is not None
    assert b" 5000000 65000 " in outline.structure


@pytest.mark.parametrize("item", UNTOLD)
def test_outline_does_not_tell_what_it_does_not_hold(item: FetchItem) -> None:
    outline = Outline.unpack(outline_of(Skeleton(b"Subject: x\r\nReceived: y\r\n\r\nz")))
    assert outline is not None
    assert not may_tell(item)
    assert teller(fields(("received",)))(outline) is None
    assert b"received" not in KEPT


NO_OUTLINE = {
    "with many fields": Skeleton(b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n"),
    "with many fields in a part": Skeleton(
        b"Content-Type: message/rfc822\r\n\r\n" + b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n"
    ),
    "of which only the header is known": Skeleton(b"Subject: x\r\n\r\n", (Gap(14, 9, 1),), header_only=True),
    "with a huge header": Skeleton(b"Subject: x", (Gap(10, 9, 1),), header_only=True, lacks_header=True),
}


@pytest.mark.parametrize("which", NO_OUTLINE)
def test_body_has_no_outline(which: str) -> None:
    assert not outline_of(NO_OUTLINE[which])
    assert outline_of(Skeleton(b"A: b\r\n" * MAX_FIELDS + b"\r\n"))


def test_version_rises_with_each_change_of_what_outlines_tell() -> None:
    """On failure, increase VERSION, so that nodes make their outlines anew; or the hard mails have changed."""
    made = hashlib.sha256(b"".join(outline_of(Skeleton(raw)) for raw in HARD_MAILS.values())).hexdigest()
    assert (VERSION, made[:16]) == (3, "da06cc44b25c8fae")
