from __future__ import annotations

import email
from email.message import Message
from typing import TypeAlias

import pytest

from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.rendering.fetch_answers import ParsedBody, section
from replicator.imap.wire.fetch_items import BodySection, SectionText
from replicator.imap.wire.responses import fetch_response, without_body
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import Part, parse
from tests.imap_data.corpus import check_spans, corpus

Shape: TypeAlias = tuple["str | bytes | Shape", ...]

CORPUS = corpus()

# The email package drops these octets: those in a multipart whose delimiter never comes.
DROPPED = {b"": b"--BBB--\n", b"\n": b""}


def expected(message: Message) -> Shape:
    """Return the tree of parts that the email package finds."""
    payload = message.get_payload()
    if isinstance(payload, str):
        octets = payload.encode("ascii", "surrogateescape")
        kind = message.get_content_type()
        return ("text/plain", octets) if message.get_content_maintype() == "multipart" else (kind, octets)
    assert isinstance(payload, list)
    children = [child for child in payload if isinstance(child, Message)]
    if message.get_content_maintype() == "multipart":
        return (message.get_content_type(), *map(expected, children))
    if message.get_content_type() == "message/rfc822":
        return ("message/rfc822", expected(children[0]))
    return (message.get_content_type(),)  # the email package parses delivery reports and the like; IMAP does not


def shape(part: Part) -> Shape:
    kind = b"%b/%b" % (part.content_type.value, part.content_type.subtype)
    name = kind.decode("ascii").lower()
    if part.nested is not None:
        return (name, shape(part.nested))
    if part.children:
        return (name, *map(shape, part.children))
    return (name,) if name in {"message/delivery-status", "message/external-body"} else (name, part.body)


def without_dropped(tree: Shape, ours: Shape) -> Shape:
    """Return `tree` with our leaves where the email package is known to drop octets."""
    if len(tree) == 2 and tree[0] == "text/plain" and tree[1] in DROPPED and ours == ("text/plain", DROPPED[tree[1]]):
        return ours
    return tuple(
        without_dropped(theirs, mine) if isinstance(theirs, tuple) and isinstance(mine, tuple) else theirs
        for theirs, mine in zip(tree, ours, strict=True)
    )


@pytest.mark.parametrize("name", CORPUS)
def test_structure_and_octets_equal_those_of_the_email_package(name: str) -> None:
    ours = shape(parse(CORPUS[name]))
    assert ours == without_dropped(expected(email.message_from_bytes(CORPUS[name])), ours)


@pytest.mark.parametrize("name", CORPUS)
def test_structure_is_the_same_with_crlf_line_ends(name: str) -> None:
    raw = b"\r\n".join(CORPUS[name].replace(b"\r\n", b"\n").split(b"\n"))
    assert [kind_of(part) for part in parse(raw).walk()] == [kind_of(part) for part in parse(CORPUS[name]).walk()]
    check_spans(parse(raw), 0, len(raw))


def kind_of(part: Part) -> tuple[bytes, bytes, int]:
    return part.content_type.value, part.content_type.subtype, part.body.count(b"\n")


@pytest.mark.parametrize("name", CORPUS)
def test_sections_are_slices_of_the_body(name: str) -> None:
    raw = CORPUS[name]
    parsed = ParsedBody(Skeleton(raw))
    assert section(parsed, BodySection()) == raw
    header, body = (section(parsed, BodySection(text=what)) for what in (SectionText.HEADER, SectionText.TEXT))
    assert isinstance(header, bytes)
    assert isinstance(body, bytes)
    assert header + body == raw
    check_spans(parsed.structure, 0, len(raw))


@pytest.mark.parametrize("name", CORPUS)
def test_every_structure_can_be_printed(name: str) -> None:
    value = body_structure(parse(CORPUS[name]), Skeleton(CORPUS[name]), extended=True)
    printed = b"".join(without_body(fetch_response(1, [(b"BODYSTRUCTURE", value)])))
    assert printed.startswith(b"* 1 FETCH (BODYSTRUCTURE (")
    assert printed.count(b"(") >= 2
