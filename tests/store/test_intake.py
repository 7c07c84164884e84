from __future__ import annotations

import hashlib
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.bodystructure import body_structure
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import parse
from replicator.store.intake import Intake, TakenIn
from replicator.store.recipe import Recipe
from tests.mime.messages import MESSAGES, cuts
from tests.store.memory_attachments import MemoryAttachments, MemoryHolding, read

INLINE_MAX = st.sampled_from([0, 1, 2, 3, 5, 9, 20, 50, 100, 200])


def take_in(store: MemoryAttachments, pieces: Iterable[bytes], inline_max: int) -> TakenIn[MemoryHolding]:
    intake = Intake(store, inline_max)
    for piece in pieces:
        intake.write(piece)
    return intake.finish()


def check_text(text: bytes, taken: TakenIn[MemoryHolding], store: MemoryAttachments) -> None:
    recipe = taken.recipe
    assert taken.content_hash == hashlib.sha256(text).digest()
    assert taken.size_bytes == recipe.length == len(text)
    assert read(recipe, store.contents, 0, len(text)) == text
    assert store.open == 0
    assert store.held == {holding.hash: 1 for holding in taken.holdings}
    assert store.held.keys() == {piece.hash for piece in recipe.attached}
    assert Recipe.unpack(recipe.pack()) == recipe


def check_structure(text: bytes, skeleton: Skeleton) -> None:
    whole, cut = parse(text), parse(skeleton.raw)
    for one, other in zip(whole.walk(), cut.walk(), strict=True):
        assert one.content_type == other.content_type
        assert len(one.children) == len(other.children)
        assert (one.nested is None) is (other.nested is None)
        assert one.header.start == skeleton.start(other.header.start)
        assert one.header.fields_end == skeleton.start(other.header.fields_end)
        assert one.header.end == skeleton.start(other.header.end)
        assert one.end == skeleton.end(other.end)
        assert list(one.header.fields()) == list(other.header.fields())
        lines = text.count(b"\n", one.header.end, one.end)
        assert skeleton.lines(other.header.end, other.end) == lines
    for extended in (False, True):
        expected = body_structure(whole, Skeleton(text), extended=extended)
        assert body_structure(cut, skeleton, extended=extended) == expected


@given(st.data(), MESSAGES, INLINE_MAX)
def test_text_structure_and_every_range_are_those_of_the_text(
    data: st.DataObject, text: bytes, inline_max: int
) -> None:
    store = MemoryAttachments()
    taken = take_in(store, data.draw(cuts(text)), inline_max)
    check_text(text, taken, store)
    skeleton = taken.recipe.skeleton()
    assert skeleton is not None
    assert skeleton.size_bytes == len(text)
    check_structure(text, skeleton)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert read(taken.recipe, store.contents, start, end) == text[start:end]


@given(st.data(), st.one_of(MESSAGES, st.binary(max_size=300)), INLINE_MAX)
def test_a_text_has_one_recipe_however_it_comes(data: st.DataObject, text: bytes, inline_max: int) -> None:
    recipes = [
        take_in(MemoryAttachments(), pieces, inline_max).recipe
        for pieces in ([text], data.draw(cuts(text)), [text[at : at + 1] for at in range(len(text))])
    ]
    assert recipes[0] == recipes[1] == recipes[2]
