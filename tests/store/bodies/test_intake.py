from __future__ import annotations

import binascii
import hashlib
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import KIB
from replicator.mime.base64_lines import Coding
from replicator.mime.structure import parse
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.bodies.recipe import INLINE_TOTAL_MAX
from tests.effort import spread
from tests.imap_data.corpus import corpus
from tests.mime.messages import MESSAGES, base64_texts, cuts
from tests.store.bodies.memory_attachments import MemoryAttachments, read
from tests.store.bodies.taking_in import (
    HEAD,
    TAIL,
    base64_lines,
    check_all,
    check_body,
    check_sections,
    check_structure,
    take_in,
)

INLINE_MAX = st.sampled_from([0, 1, 2, 3, 5, 9, 20, 50, 100, 200])


@given(st.data(), MESSAGES, INLINE_MAX)
def test_body_structure_and_every_range_are_preserved(data: st.DataObject, body: bytes, inline_max: int) -> None:
    store = MemoryAttachments()
    taken = take_in(store, data.draw(cuts(body)), inline_max)
    check_body(body, taken, store)
    skeleton = taken.recipe.skeleton()
    assert skeleton is not None
    assert skeleton.size_bytes == len(body)
    check_structure(body, skeleton)
    check_sections(body, skeleton)
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, len(body)))
    assert read(taken.recipe, store.contents, start, end) == body[start:end]


@given(st.data(), st.one_of(MESSAGES, st.binary(max_size=300)), INLINE_MAX)
def test_recipe_does_not_depend_on_the_pieces_of_input(data: st.DataObject, body: bytes, inline_max: int) -> None:
    recipes = [
        take_in(MemoryAttachments(), pieces, inline_max).recipe
        for pieces in ([body], data.draw(cuts(body)), [body[at : at + 1] for at in range(len(body))])
    ]
    assert recipes[0] == recipes[1] == recipes[2]


CORPUS = corpus()


def mutations(body: bytes, source: random.Random) -> Iterator[bytes]:
    """Yield variants: other line ends, and lines removed, doubled, exchanged and cut off."""
    yield body
    yield b"\r\n".join(body.replace(b"\r\n", b"\n").split(b"\n"))
    for _ in range(8):
        lines = body.splitlines(keepends=True)
        for _ in range(source.randint(1, 3)):
            at, other = source.randrange(len(lines)), source.randrange(len(lines))
            lines[at : at + source.randint(0, 2)] = lines[other : other + source.randint(0, 2)]
            lines = lines or [b"\n"]
        yield b"".join(lines)
        yield b"".join(lines)[: source.randrange(len(body))]


@pytest.mark.parametrize("name", spread(16, CORPUS))
def test_difficult_messages_are_preserved(name: str) -> None:
    source = random.Random(name)
    for body in mutations(CORPUS[name], source):
        check_all(body, source.choice([1, 2, 20, 100, 300]), source.choice([1, 7, 100, 5000]))


@given(st.data(), base64_texts(), st.integers(1, 60))
def test_flawed_base64_is_preserved(data: st.DataObject, encoded: bytes, inline_max: int) -> None:
    body, store = HEAD + encoded + TAIL, MemoryAttachments()
    taken = take_in(store, data.draw(cuts(body)), inline_max)
    check_body(body, taken, store)
    assert taken.recipe == check_all(body, inline_max, len(body))
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, len(body)))
    assert read(taken.recipe, store.contents, start, end) == body[start:end]


def test_base64_is_stored_decoded() -> None:
    content = random.Random(1).randbytes(200_000)
    recipe = check_all(HEAD + base64_lines(content) + TAIL, 64 * KIB, 5000)
    head, piece, tail = recipe.pieces
    assert (head, tail) == (HEAD, TAIL)
    assert isinstance(piece, Attached)
    assert (piece.hash, piece.size_bytes) == (hashlib.sha256(content).digest(), len(content))
    assert piece.coding == Coding(76, b"\r\n", is_closed=False)


def test_octets_after_base64_are_stored_unchanged() -> None:
    content = random.Random(2).randbytes(57 * 1000)
    good = base64_lines(content) + b"\r\n"
    for rest, kinds in (
        (b"\r\n-- \r\na list", [False, True, False]),
        (b"!" + bytes(299), [False, True, False]),
        (b"!" + bytes(300), [False, True, True, False]),
    ):
        pieces = check_all(HEAD + good + rest + TAIL, 301, 5000).pieces
        assert [isinstance(piece, Attached) for piece in pieces] == kinds
        assert isinstance(pieces[1], Attached)
        assert pieces[1].hash == hashlib.sha256(content).digest()


def test_base64_that_is_invalid_early_is_stored_unchanged() -> None:
    good = base64_lines(random.Random(3).randbytes(5000))
    for at, count in ((0, 1), (200, 1), (400, 2)):
        encoded = good[:at] + b"!" + good[at:]
        attached = check_all(HEAD + encoded + TAIL, 300, 5000).attached
        assert len(attached) == count
        assert (attached[0].coding is None) is (count == 1)


def test_rest_of_a_base64_line_is_no_line_of_the_skeleton() -> None:
    encoded = binascii.b2a_base64(bytes(3000), newline=False) + b"--b\r\n\r\n--b"
    recipe = check_all(HEAD + encoded + TAIL, 300, 5000)
    assert [piece.coding for piece in recipe.attached] == [Coding(0, b"", is_closed=False), None]
    skeleton = recipe.skeleton()
    assert skeleton is not None
    assert len(parse(skeleton.raw).children) == len(parse(HEAD + encoded + TAIL).children)


def test_small_bodies_and_parts_stay_inline() -> None:
    body = HEAD + base64_lines(bytes(3000)) + TAIL
    assert check_all(body, len(body), 100).pieces == (body,)
    assert check_all(b"", 0, 100).pieces == ()
    assert len(check_all(body, len(body) - 90, 100).pieces) == 1  # a part below the limit stays inline too
    assert len(check_all(body, 1000, 100).pieces) == 3


def test_attachment_that_occurs_twice_is_held_once() -> None:
    part = b"Content-Transfer-Encoding: base64\r\n\r\n" + base64_lines(bytes(3000))
    body = HEAD[: HEAD.index(b"--b")] + b"--b\r\n" + part + b"\r\n--b\r\n" + part + TAIL
    recipe = check_all(body, 1000, 100)  # checks that each attachment is held once
    assert [piece.size_bytes for piece in recipe.attached] == [3000, 3000]


def test_rest_beyond_the_inline_limit_is_opaque() -> None:
    before = HEAD + base64_lines(bytes(3000)) + b"\r\n--b\r\n"
    exactly = before + b"a" * (INLINE_TOTAL_MAX - len(HEAD) - len(b"\r\n--b\r\n"))
    recipe = check_all(exactly, 1000, 50_000)
    assert len(recipe.attached) == 1
    skeleton = recipe.skeleton()
    assert skeleton is not None
    assert not skeleton.header_only
    more = b"a\r\n--b\r\n\r\n" + b"body" * 1000 + TAIL
    recipe = check_all(exactly + more, 1000, 50_000)
    assert [(piece.opaque, piece.length) for piece in recipe.attached] == [(False, 4104), (True, len(more))]
    skeleton = recipe.skeleton()
    assert skeleton is not None
    assert skeleton.header_only
    store = MemoryAttachments()
    taken = take_in(store, [exactly + b"a\r\n-", b"-b\r\n", b"\r\nend"], 1000)  # the limit is within a delimiter
    check_body(exactly + b"a\r\n--b\r\n\r\nend", taken, store)
