"""Intake of bodies in tests, and checks of the result."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable

from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.rendering.fetch_answers import ParsedBody, section
from replicator.imap.wire.fetch_items import BodySection, Partial, SectionText, Span
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import parse
from replicator.store.bodies.body_writer import BodyWriter, TakenIn
from replicator.store.bodies.recipe import Recipe
from tests.store.bodies.memory_attachments import MemoryAttachments, MemoryHolding, read

HEAD = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Transfer-Encoding: base64\r\n\r\n"
TAIL = b"\r\n--b--\r\n"


def base64_lines(content: bytes) -> bytes:
    encoded = binascii.b2a_base64(content, newline=False)
    return b"\r\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))


def take_in(store: MemoryAttachments, pieces: Iterable[bytes], inline_max: int) -> TakenIn[MemoryHolding]:
    intake = BodyWriter(store, inline_max)
    for piece in pieces:
        intake.write(piece)
    return intake.finish()


def check_body(body: bytes, taken: TakenIn[MemoryHolding], store: MemoryAttachments) -> None:
    recipe = taken.recipe
    assert taken.content_hash == hashlib.sha256(body).digest()
    assert taken.size_bytes == recipe.length == len(body)
    assert read(recipe, store.contents, 0, len(body)) == body
    assert store.open == 0
    assert store.held == {holding.hash: 1 for holding in taken.holdings}
    assert store.held.keys() == {piece.hash for piece in recipe.attached}
    assert Recipe.unpack(recipe.pack()) == recipe


def check_structure(body: bytes, skeleton: Skeleton) -> None:
    whole, cut = parse(body), parse(skeleton.raw)
    for one, other in zip(whole.walk(), cut.walk(), strict=True):
        assert one.content_type == other.content_type
        assert len(one.children) == len(other.children)
        assert (one.nested is None) is (other.nested is None)
        assert one.header.start == skeleton.start(other.header.start)
        assert one.header.fields_end == skeleton.start(other.header.fields_end)
        assert one.header.end == skeleton.start(other.header.end)
        assert one.end == skeleton.end(other.end)
        every = frozenset[bytes]()
        assert one.header.select(every, others=True) == other.header.select(every, others=True)
        lines = body.count(b"\n", one.header.end, one.end)
        assert skeleton.lines(other.header.end, other.end) == lines
    for extended in (False, True):
        expected = body_structure(whole, Skeleton(body), extended=extended)
        assert body_structure(cut, skeleton, extended=extended) == expected


PARTIALS = [None, Partial(0, 3), Partial(2, 50), Partial(1000, 7)]
TEXTS = [None, SectionText.HEADER, SectionText.TEXT, SectionText.MIME]


def check_sections(body: bytes, skeleton: Skeleton) -> None:
    """Check that each section of the skeleton has the octets of the whole body.

    If only the header is known, check the message's own header and body.
    """
    whole, cut = ParsedBody(Skeleton(body)), ParsedBody(skeleton)
    paths: list[tuple[int, ...]] = [()]
    for path in paths:
        for what in TEXTS:
            for partial in PARTIALS:
                item = BodySection(path, what, (), partial)
                found = section(cut, item)
                octets = body[found.start : found.end] if isinstance(found, Span) else found
                assert octets == section(whole, item), item
        if skeleton.header_only:
            break
        paths += [(*path, number) for number in range(1, 5) if whole.structure.find((*path, number)) and len(path) < 6]


def check_all(body: bytes, inline_max: int, step: int) -> Recipe:
    store = MemoryAttachments()
    taken = take_in(store, (body[at : at + step] for at in range(0, len(body), step)), inline_max)
    check_body(body, taken, store)
    skeleton = taken.recipe.skeleton()
    if not skeleton.lacks_header:
        if not skeleton.header_only:
            check_structure(body, skeleton)
        check_sections(body, skeleton)
    return taken.recipe
