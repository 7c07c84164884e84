from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.handlers.folder_list import NOSELECT, Pattern, list_entries, special_uses


def matches_regex(pattern: str, name: str) -> bool:
    regex = "".join({"*": ".*", "%": "[^/]*"}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(regex, name, re.DOTALL) is not None


@given(st.text("ab/*%", max_size=12), st.text("ab/", max_size=14))
def test_patterns_match_like_a_regular_expression(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) == matches_regex(pattern, name)


class CountedName(str):
    """A name that counts how many of its characters are looked at."""

    __slots__ = ("visited",)

    def __iter__(self) -> Iterator[str]:
        self.visited = 0
        for character in str(self):
            self.visited += 1
            yield character


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("*a%" * 300 + "b", False), ("*a" * 300 + "*", True), ("%" * 1000 + "b", False), ("a" * 400, True)],
)
def test_each_character_of_a_name_is_visited_once_at_most(pattern: str, *, matches: bool) -> None:
    name = CountedName("a" * 400)
    assert Pattern(pattern).matches(name) is matches
    assert name.visited <= len(name)


NAMES = ["INBOX", "Drafts", "INBOX/x", "a", "a/b/c"]


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
    entries = [entry for entry in list_entries(pattern, NAMES, children=True) if entry is not None]
    assert [" ".join([name, *attributes]) for name, attributes in entries] == listed


def test_missing_parent_is_listed_once_and_before_its_subfolders() -> None:
    names = ["a/b-x", "a/b/c", "a/b/d"]
    entries = [entry for entry in list_entries("*", names, children=False) if entry is not None]
    assert [entry.name for entry in entries] == ["a", "a/b-x", "a/b", "a/b/c", "a/b/d"]
    assert [entry.name for entry in entries if NOSELECT in entry.attributes] == ["a", "a/b"]


def test_a_list_that_finds_nothing_still_pauses_for_each_folder() -> None:
    steps = list(list_entries("nothing", [f"{number}" for number in range(1000)], children=True))
    assert len(steps) >= 1000
    assert not any(steps)


def test_many_names_are_not_compared_with_each_other() -> None:
    compared = 0

    class Name(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str(self) < other

    names = [Name(f"a folder with a long name {number}") for number in range(1000)]
    steps = [step for step in list_entries("*", names, children=True) if step is not None]
    assert [step.name for step in steps] == names
    assert compared == 0


def test_first_conventional_name_gets_the_special_use() -> None:
    names = ["Sent Items", "SENT", "Spam", "Trash/old", "Archives"]
    assert special_uses(names) == {"SENT": "\\Sent", "Spam": "\\Junk", "Archives": "\\Archive"}
