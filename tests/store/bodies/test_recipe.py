from __future__ import annotations

import binascii
import hashlib
import random
from dataclasses import replace
from typing import cast

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.mime.base64_lines import Coding
from replicator.mime.skeleton import Gap, Skeleton
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, CHUNK_HASH_BYTES, Attached, ChunkHasher
from replicator.store.bodies.recipe import INLINE_TOTAL_MAX, PACKED_MAX, Piece, Recipe
from tests.store.bodies.memory_attachments import read

CRLF_LINES, ONE_LINE = Coding(76, b"\r\n", is_closed=True), Coding(0, b"\n", is_closed=True)
CODINGS = [
    None,
    CRLF_LINES,
    ONE_LINE,
    Coding(996, b"\n", is_closed=False),
    Coding(4, b"\r\n", is_closed=False),
    Coding(0, b"", is_closed=False),
]


def attached(content: bytes, coding: Coding | None = None, *, opaque: bool = False) -> Attached:
    hasher = ChunkHasher()
    hasher.update(content[:10])
    hasher.update(content[10:])
    lines = content.count(b"\n") if coding is None else coding.lines(len(content))
    return Attached(hashlib.sha256(content).digest(), len(content), lines, hasher.finish(), coding, opaque)


def encode(content: bytes, coding: Coding | None) -> bytes:
    if coding is None:
        return content
    encoded = binascii.b2a_base64(content, newline=False)
    width = coding.width or len(encoded)
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
    return coding.line_end.join(lines) + (coding.line_end if coding.is_closed else b"")


SIZES = [1, 2, 3, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 5, 3 * CHUNK_BYTES]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", SIZES)
def test_any_range_is_read_from_verified_chunks(size: int, coding: Coding | None) -> None:
    source = random.Random(size)
    content = source.randbytes(size)
    body = b"before" + encode(content, coding) + b"after" + content
    recipe = Recipe((b"before", attached(content, coding), b"after", attached(content)))
    contents = {hashlib.sha256(content).digest(): content}
    assert recipe.length == len(body)
    assert read(recipe, contents, 0, len(body)) == body
    borders = [0, 6, len(body) - size, CHUNK_BYTES, CHUNK_BYTES * 4 // 3, len(body)]
    for border in borders:
        start = max(0, border - source.randrange(90))
        end = min(len(body), border + source.randrange(90))
        assert read(recipe, contents, start, end) == body[start:end]
    assert list(recipe.slices(5, 5)) == []
    behind = 6 + attached(content, coding).length
    assert read(recipe, contents, behind - 1, behind) == body[behind - 1 : behind]


@given(st.data())
def test_any_small_range_is_read(data: st.DataObject) -> None:
    content, coding = data.draw(st.binary(min_size=1, max_size=300)), data.draw(st.sampled_from(CODINGS))
    body = b"a" + encode(content, coding) + b"b"
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, len(body)))
    recipe = Recipe((b"a", attached(content, coding), b"b"))
    assert read(recipe, {hashlib.sha256(content).digest(): content}, start, end) == body[start:end]


def test_each_chunk_is_read_once_if_kept_for_the_next_slice() -> None:
    content = bytes(5 * CHUNK_BYTES)
    for coding in CODINGS:
        piece = attached(content, coding)
        kept: set[int] = set()
        reads: list[int] = []
        for part in piece.slices(0, piece.length):
            reads += sorted(set(part.chunks) - kept)
            kept = set(part.chunks)
        assert reads == list(range(5))


def test_a_chunk_is_verified_by_its_hash() -> None:
    content = random.Random(1).randbytes(CHUNK_BYTES + 7)
    piece = attached(content)
    chunks = [content[:CHUNK_BYTES], content[CHUNK_BYTES:]]
    assert [piece.verify(number, chunk) for number, chunk in enumerate(chunks)] == [True, True]
    assert not piece.verify(1, chunks[0])
    assert not piece.verify(0, chunks[0][:-1])
    assert not piece.verify(0, b"\x00" + chunks[0][1:])
    assert not piece.verify(2, b"")


def test_the_skeleton_has_a_gap_for_each_attachment() -> None:
    one, other = attached(b"1\n2\n3"), attached(b"ABCD", ONE_LINE)
    recipe = Recipe((b"head", one, other, b"tail"))
    assert recipe.skeleton() == Skeleton(b"headtail", (Gap(4, 5, 2), Gap(4, 9, 1)))
    assert recipe.attached == (one, other)


@pytest.mark.parametrize("head", [b"A: b\n\nline\n", b"A: b\r\n\r\nline\n+"])
def test_recipe_with_an_opaque_rest_has_its_header(head: bytes) -> None:
    recipe = Recipe((head, attached(b"ABC"), attached(b"1\n2", opaque=True)))
    assert recipe.skeleton() == Skeleton(head, (Gap(len(head), 3, 0), Gap(len(head), 3, 1)), header_only=True)
    assert Recipe.unpack(recipe.pack()) == recipe


@pytest.mark.parametrize("head", [b"A: b", b"A: b\n", b"A: b\r\n\r\n", b"A: b\n\nline\r", b"A: b\nline"])
def test_header_that_may_continue_in_an_opaque_rest_is_missing(head: bytes) -> None:
    assert Recipe((head, attached(b"1\n2", opaque=True))).skeleton().lacks_header


GOOD = attached(b"1\n2" * CHUNK_BYTES)
CODED = attached(b"ABCD" * 100, CRLF_LINES)


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"a", b"b"),
        (replace(GOOD, opaque=True), b"a"),
        (replace(GOOD, opaque=True), GOOD),
        (b"a" * INLINE_TOTAL_MAX, GOOD, b"b"),
    ],
)
def test_impossible_pieces_are_refused(pieces: tuple[Piece, ...]) -> None:
    with pytest.raises(ValueError, match=r"inline|opaque"):
        Recipe(pieces)


@pytest.mark.parametrize(
    "piece",
    [
        replace(GOOD, hash=b"1" * 31),
        replace(GOOD, size_bytes=0, chunk_hashes=b"", lines=0),
        replace(GOOD, size_bytes=-1),
        replace(GOOD, size_bytes=GOOD.size_bytes + 1),
        replace(GOOD, size_bytes=1 << 62),
        replace(GOOD, chunk_hashes=GOOD.chunk_hashes[:-1]),
        replace(GOOD, chunk_hashes=GOOD.chunk_hashes + bytes(CHUNK_HASH_BYTES)),
        replace(GOOD, lines=-1),
        replace(GOOD, lines=GOOD.length + 1),
        replace(CODED, lines=CODED.lines - 1),
        replace(CODED, lines=CODED.lines + 1),
        replace(CODED, opaque=True),
        replace(attached(b"1"), size_bytes=True),
        replace(attached(b"\n"), lines=True),
    ],
)
def test_impossible_attachments_are_not_unpacked(piece: Attached) -> None:
    packed = Recipe((b"head", piece)).pack()
    with pytest.raises(ValueError, match=r"."):
        Recipe.unpack(packed)


def packed_with(**changes: object) -> bytes:
    """Pack a recipe of one base64 attachment with some values changed."""
    fields = {"hash": CODED.hash, "size": 3, "lines": 1, "hashes": bytes(CHUNK_HASH_BYTES), "coding": (76, b"\n", True)}
    return cast("bytes", msgpack.packb([list({**fields, "opaque": False, **changes}.values())]))


@pytest.mark.parametrize(
    "changes",
    [
        *({"coding": coding} for coding in [(75, b"\n", True), (1000, b"\n", True), (76, b"", True), (76, b"\n", 1)]),
        *(
            {"coding": coding}
            for coding in [(76, "\n", True), (76, b"\n"), (76, b"\n", True, 1), (True, b"\n", True), (), b""]
        ),
        {"size": True},
        {"size": 3.0},
        {"size": "3"},
        {"size": None},
        {"lines": 1.0},
        {"lines": True},
        {"hash": "1" * 32},
        {"hashes": "1" * 16},
        {"hashes": None},
        {"opaque": True},
        {"opaque": 0},
        {"more": 1},
    ],
)
def test_attachments_of_other_types_are_not_unpacked(changes: dict[str, object]) -> None:
    assert len(Recipe.unpack(packed_with()).attached) == 1
    with pytest.raises(ValueError, match=r"recipe|line"):
        Recipe.unpack(packed_with(**changes))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc0",
        b"\x93\xc4",
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"\x81\xc4\x01a\xc4\x01b",
        b"\x91\xa1a",
        b"\xdc\x00\x01\xc4\x01a",  # a longer encoding than needed
        b"\x91\xc4\x01a\xc0",
        b"\x91\xc4\x01a".ljust(PACKED_MAX + 1, b"\xc0"),
    ],
)
def test_other_bytes_are_not_unpacked(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"recipe|MessagePack|array"):
        Recipe.unpack(packed)


SAMPLE = Recipe((b"head", attached(b"ABCD" * 50, CRLF_LINES), b"mid", attached(b"1\n" * 70000), b"tail")).pack()


@given(st.data())
def test_damaged_bytes_unpack_to_their_own_recipe_or_fail(data: st.DataObject) -> None:
    at, gone = data.draw(st.integers(0, len(SAMPLE))), data.draw(st.integers(0, 3))
    packed = SAMPLE[:at] + data.draw(st.binary(max_size=3)) + SAMPLE[at + gone :]
    try:
        recipe = Recipe.unpack(packed)
    except ValueError:
        return
    assert recipe.pack() == packed
    assert (
        sum(
            part.end - part.start if not isinstance(part, bytes) else len(part)
            for part in recipe.slices(0, recipe.length)
        )
        == recipe.length
    )
    assert recipe.skeleton().size_bytes == recipe.length
