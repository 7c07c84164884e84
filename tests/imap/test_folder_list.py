from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.handlers.folders.folder_list import (
    NOSELECT,
    Entry,
    FolderSelection,
    Pattern,
    list_entries,
    lsub_entries,
)
from replicator.imap.special_uses import special_uses, uses_of


def matches_regex(pattern: str, name: str) -> bool:
    regex = "".join({"*": ".*", "%": "[^/]*"}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(regex, name, re.DOTALL) is not None


@given(st.lists(st.text("ab/*%", max_size=12), max_size=4), st.text("ab/", max_size=14))
def test_patterns_match_like_regular_expressions(patterns: list[str], name: str) -> None:
    assert Pattern(*patterns).matches(name) == any(matches_regex(pattern, name) for pattern in patterns)


class CountedName(str):
    """A name that counts how many of its characters are looked at."""

    __slots__ = ("visited",)

    def __iter__(self) -> Iterator[str]:
        self.visited = 0
        for character in str(self):
            self.visited += 1
            yield character


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [
        (["*a%" * 300 + "b"], False),
        (["*a" * 300 + "*"], True),
        (["%" * 1000 + "b"], False),
        (["a" * 400], True),
        (["*b"] * 500, False),
    ],
)
def test_each_character_of_a_name_is_visited_once_at_most(patterns: list[str], *, matches: bool) -> None:
    name = CountedName("a" * 400)
    assert Pattern(*patterns).matches(name) is matches
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
        ("inBox/x", ["INBOX/x \\HasNoChildren"]),
        ("inbox/%", ["INBOX/x \\HasNoChildren"]),
        ("inbox*", ["INBOX \\HasChildren", "INBOX/x \\HasNoChildren"]),
        ("inbox/X", []),
        ("A", []),
        ("", []),
    ],
)  # fmt: skip
def test_list_entries_have_their_attributes(pattern: str, listed: list[str]) -> None:
    assert shown(list_entries([pattern], NAMES, FolderSelection(marked=[special_uses(NAMES, {})]))) == listed


def shown(entries: Iterator[Entry | None]) -> list[str]:
    return [" ".join([entry.name, *entry.attributes]) for entry in entries if entry is not None]


@pytest.mark.parametrize(("pattern", "listed"), [("*", ["INBOX", "a/b/c"]), ("%", ["INBOX", "a \\Noselect"])])
def test_lsub_shows_parents_that_are_not_subscribed_only_where_a_percent_sign_stops_at_them(
    pattern: str, listed: list[str]
) -> None:
    """RFC 3501 section 6.3.9."""
    assert shown(lsub_entries(pattern, ["INBOX", "a/b/c"])) == listed


@given(st.data())
def test_selection_finds_the_folders_that_meet_all_criteria_and_their_parents(data: st.DataObject) -> None:
    """RFC 5258 sections 3.1 and 3.5, against a search that compares all names with each other."""
    name = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
    folders = data.draw(st.lists(name, unique=True))
    criteria = data.draw(st.lists(st.sets(name), min_size=1, max_size=2))
    recursive = data.draw(st.booleans())
    unknown = sorted(criteria[0].difference(folders))
    pattern = data.draw(st.sampled_from(["*", "%", "a/%", "a*"]))
    selected = {one for one in {*folders, *unknown} if all(one in those for those in criteria)}
    above = {one for one in levels({*folders, *unknown}) if any(other.startswith(f"{one}/") for other in selected)}
    expected = {
        (one, one in folders and one in selected, recursive and one in above)
        for one in selected | (above if recursive else set())
        if Pattern(pattern).matches(one)
    }
    selection = FolderSelection(criteria, recursive, unknown)
    entries = [entry for entry in list_entries([pattern], folders, selection) if entry is not None]
    assert len(entries) == len(expected)
    assert {(entry.name, entry.meets, entry.child_info) for entry in entries} == expected
    assert all((NOSELECT in entry.attributes) == (entry.name not in folders) for entry in entries)


def levels(names: set[str]) -> set[str]:
    return {name.rsplit("/", depth)[0] for name in names for depth in range(3)}


def test_missing_parent_is_listed_once_and_before_its_subfolders() -> None:
    names = ["a/b-x", "a/b/c", "a/b/d"]
    entries = [entry for entry in list_entries(["*"], names) if entry is not None]
    assert [entry.name for entry in entries] == ["a", "a/b-x", "a/b", "a/b/c", "a/b/d"]
    assert [entry.name for entry in entries if NOSELECT in entry.attributes] == ["a", "a/b"]


def test_a_list_that_finds_nothing_still_pauses_for_each_folder() -> None:
    steps = list(list_entries(["nothing"], [f"{number}" for number in range(1000)]))
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
    steps = [step for step in list_entries(["*"], names) if step is not None]
    assert [step.name for step in steps] == names
    assert compared == 0


def test_first_conventional_name_gets_the_special_use() -> None:
    names = ["Sent Items", "SENT", "Spam", "Trash/old", "Archives"]
    assert special_uses(names, {}) == {"SENT": "\\Sent", "Spam": "\\Junk", "Archives": "\\Archive"}


@pytest.mark.parametrize(
    "names",
    [
        ["Sent Items", "Deleted Items", "Junk E-mail", "Drafts", "Archive"],  # Outlook
        ["[Gmail]/Sent Mail", "[Gmail]/Trash", "[Gmail]/Spam", "[Gmail]/Drafts", "Archive"],
        ["Sent Messages", "Deleted Messages", "Junk", "Drafts", "Archive"],  # Apple Mail
        ["Sent", "Trash", "Junk", "Drafts", "Archives"],  # Thunderbird
    ],
)
def test_names_of_mail_programs_have_special_uses(names: list[str]) -> None:
    uses = ["\\Sent", "\\Trash", "\\Junk", "\\Drafts", "\\Archive"]
    assert special_uses(names, {}) == dict(zip(names, uses, strict=True))


def test_names_are_guesses_only_where_no_folder_has_the_use() -> None:
    names = ["Sent", "Out", "Trash", "Bin", "Drafts"]
    assigned = {"Out": "\\Sent \\Archive", "Drafts": "", "Trash": "\\Junk"}
    assert special_uses(names, assigned) == {"Out": "\\Sent \\Archive", "Trash": "\\Junk", "Bin": "\\Trash"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\\Sent \\Trash", "\\Sent \\Trash"),
        (b"", ""),
        (b'\\Sent) "/" x\r\n* BYE \\Drafts', "\\Drafts"),
        (b"\xff \\All", ""),
    ],
)
def test_only_supported_uses_of_an_annotation_are_shown(value: bytes, shown: str) -> None:
    assert uses_of(value) == shown
