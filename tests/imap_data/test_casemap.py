"""The comparator i;unicode-casemap (RFC 5051)."""

from __future__ import annotations

import unicodedata
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.text import casemap as module
from replicator.imap.text.casemap import casemap


@pytest.mark.parametrize(
    ("text", "mapped"),
    [
        ("Hello World", "HELLO WORLD"),
        ("\u00e4\u00c4", "A\u0308A\u0308"),
        ("\u01c6", "D\u017e".replace("\u017e", "z\u030c")),  # titlecase, not uppercase: the letter dž
        ("\u00df", "\u00df"),  # UnicodeData.txt has no titlecase for it
        ("\uff21\uff41", "AA"),  # compatibility forms are decomposed
        ("\ud55c", "\u1112\u1161\u11ab"),  # Hangul too
        ("\u03c3\u03c2", "\u03a3\u03a3"),
    ],
)
def test_characters_are_put_into_titlecase_and_decomposed(text: str, mapped: str) -> None:
    assert casemap(text) == mapped


@given(st.text(), st.text())
def test_mapping_does_not_depend_on_where_a_text_is_cut(before: str, after: str) -> None:
    assert casemap(before + after) == casemap(before) + casemap(after)


@given(st.text())
def test_composed_and_decomposed_texts_are_found_alike(text: str) -> None:
    for char in unicodedata.normalize("NFC", text):
        assert casemap(unicodedata.normalize("NFKD", casemap(char))) == casemap(casemap(char))


def test_cache_has_a_limit() -> None:
    with patch.object(module, "_CACHED", 10):
        text = "".join(map(chr, range(0x400, 0x450)))
        assert casemap(text) == "".join(map(casemap, text))
        assert len(module._MAPPING) <= 10
