from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.handlers.folder_list import list_entries, matches, special_uses


def matches_regex(pattern: str, name: str) -> bool:
    regex = "".join({"*": ".*", "%": "[^/]*"}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(regex, name, re.DOTALL) is not None


@given(st.text("ab/*%", max_size=8), st.text("ab/", max_size=10))
def test_patterns_match_like_a_regular_expression(pattern: str, name: str) -> None:
    assert matches(pattern, name) == matches_regex(pattern, name)


def test_hostile_pattern_is_matched_quickly() -> None:
    assert not matches("*a%" * 300 + "b", "a" * 400)


NAMES = ["INBOX", "INBOX/x", "a", "a/b/c", "Drafts"]


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        ("*", ["INBOX \\HasChildren", "Drafts \\HasNoChildren \\Drafts", "INBOX/x \\HasNoChildren", "a \\HasChildren",
               "a/b \\Noselect \\HasChildren", "a/b/c \\HasNoChildren"]),
        ("%", ["INBOX \\HasChildren", "Drafts \\HasNoChildren \\Drafts", "a \\HasChildren"]),
        ("a/%", ["a/b \\Noselect \\HasChildren"]),
        ("inBox", ["INBOX \\HasChildren"]),
        ("in%", ["INBOX \\HasChildren"]),
        ("A", []),
        ("", []),
    ],
)  # fmt: skip
def test_list_entries_have_their_attributes(pattern: str, listed: list[str]) -> None:
    assert [" ".join([name, *attributes]) for name, attributes in list_entries(pattern, NAMES, children=True)] == listed


def test_first_conventional_name_gets_the_special_use() -> None:
    names = ["Sent Items", "SENT", "Spam", "Trash/old", "Archives"]
    assert special_uses(names) == {"SENT": "\\Sent", "Spam": "\\Junk", "Archives": "\\Archive"}
