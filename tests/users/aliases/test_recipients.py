"""Aliases and catch-all addresses: the form of their file, and whom an address reaches."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from replicator.errors import UnavailableError, UsersUnavailableError
from replicator.users import Recipients, Site, UserDirectory
from replicator.users.aliases.recipients import DEPTH_MAX, EXPANSIONS_MAX
from replicator.users.aliases.table import Alias, AliasFileError, read_aliases
from replicator.users.followed_file import LEAVING_S
from tests.one_node import Names

USERS = Names("alice", "bob@example.org", "carol+x", "dave", "postmaster@new.example")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "aliases"


def recipients(file: Path, text: str) -> Recipients:
    file.write_text(text, "utf-8")
    return Recipients(USERS, file)


def test_the_form_is_that_of_postmap(file: Path) -> None:
    file.write_text(
        "# comment\n\n"
        "Info@Example.org\talice, BOB@example.org,\n"
        "# a comment within a logical line\n"
        "   \n"
        "  dave\n"
        "@example.net alice\n"
        "   # another comment\n"
        "postmaster  dave  \n"
        "j\u00fcrgen@example.org alice\n",
        "utf-8",
    )
    found = read_aliases(file)
    assert found.problems == ()
    assert found.aliases == {
        "info@example.org": Alias(("alice", "bob@example.org", "dave"), 3),
        "@example.net": Alias(("alice",), 7),
        "postmaster": Alias(("dave",), 9),
        "j\u00fcrgen@example.org": Alias(("alice",), 10),
    }


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("info@example.org", "expected an address, a space, and the users in its place"),
        ("  alone", "expected an address"),
        ("info@example.org |/bin/true", "'|/bin/true' is no address"),
        ("info@example.org :include:/etc/list", "is no address"),
        ("info@example.org /var/mail/x", "is no address"),
        ("info@example.org alice bob", "'alice bob' is no address"),
        ("info@example.org alice,,dave", "'' is no address"),
        ("in,fo alice", "'in,fo' is no address"),
        ("first@example.org bob", "first@example.org is already in line 1, which takes precedence"),
        ("info@example.org boss@elsewhere.example", "boss@elsewhere.example is no user here, and the node sends no"),
        ("@example.net boss@elsewhere.example, alice", "boss@elsewhere.example is no user here"),
        ("info@example.org info@example.org", "info@example.org is no user here"),
    ],
)
def test_what_makes_no_sense_is_told_with_file_and_line(
    file: Path, caplog: pytest.LogCaptureFixture, line: str, problem: str
) -> None:
    found = recipients(file, f"first@example.org alice\n#\n{line}\n")
    number = 1 if line.startswith(" ") else 3
    told = [one for one in found.problems() if one.startswith(f"{file}:{number}: ")]
    assert any(problem in one for one in told) or number == 1
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == found.problems()
    assert found.find("first@example.org") == (("alice",) if number == 3 else ())


@pytest.mark.parametrize(
    ("address", "users"),
    [
        ("info@example.org", ("alice", "bob@example.org")),
        ("INFO+detail@Example.ORG", ("alice", "bob@example.org")),
        ("team@example.org", ("alice", "bob@example.org", "dave")),  # each once, although two aliases name alice
        ("alice@example.org", ("alice", "dave")),  # an alias of itself is the user
        ("alice@elsewhere.example", ("alice",)),
        ("anybody@example.net", ("dave",)),
        ("alice@example.net", ("alice",)),  # a user comes before the catch-all address
        ("sales@example.net", ("alice",)),  # and so does an alias
        ("anybody@example.org", ()),
        ("postmaster@anywhere.example", ("dave",)),
        ("postmaster@old.example", ("dave",)),
        ("nobody@old.example", ()),
        ("bob@old.example", ("bob@example.org",)),  # one domain in place of another
        ("carol+x@example.org", ("carol+x",)),
        ("loop1@example.org", ()),
        ("half@example.org", ("alice",)),
        ("", ()),
        ("@example.net", ("dave",)),
    ],
)
def test_addresses_reach_users(file: Path, address: str, users: tuple[str, ...]) -> None:
    found = recipients(
        file,
        "info@example.org alice@x, bob@example.org\n"
        "team@example.org info@example.org, dave, info@example.org, alice@x\n"
        "alice@example.org alice@example.org, dave\n"
        "@example.net dave\n"
        "sales@example.net alice@x\n"
        "postmaster dave\n"
        "@old.example @example.org\n"
        "loop1@example.org loop2@example.org\n"
        "loop2@example.org loop1@example.org\n"
        "half@example.org boss@elsewhere.example, alice@x\n",
    )
    assert found.find(address) == users


def test_without_a_file_users_have_their_names_only() -> None:
    found = Recipients(USERS)
    assert (found.find("Alice@example.org"), found.find("info@example.org"), found.problems()) == (("alice",), (), [])


def test_expansion_has_limits(file: Path) -> None:
    deep = "".join(f"a{number} a{number + 1}\n" for number in range(DEPTH_MAX + 1))
    wide = "wide " + ", ".join(f"x{number}" for number in range(EXPANSIONS_MAX)) + "\n"
    found = recipients(file, deep + wide + "ok alice\n")
    for address in ("a0", "wide"):
        with pytest.raises(UnavailableError):
            found.find(address)
    assert found.find("ok") == ("alice",)


def test_doubling_aliases_end_soon(file: Path) -> None:
    found = recipients(file, "".join(f"a{n} a{n + 1}, a{n + 1}@x, a{n + 1}@y\n" for n in range(40)) + "a40 alice\n")
    assert found.find("a0") == ("alice",)  # thrice as many at each level, unless each is looked up once


NAMES = st.sampled_from(["a", "b", "c", "alice", "dave", "a@x", "b@x", "@x", "@y", "b@y"])


@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=3), max_size=6), NAMES)
def test_whatever_the_aliases_users_are_found_once(
    tmp_path_factory: pytest.TempPathFactory, aliases: dict[str, list[str]], address: str
) -> None:
    file = tmp_path_factory.mktemp("aliases") / "aliases"
    found = recipients(file, "#\n" + "".join(f"{name} {', '.join(to)}\n" for name, to in aliases.items()))
    users = found.find(address)
    assert len(set(users)) == len(users)
    assert set(users) <= {"alice", "dave"}


def test_changes_are_followed_and_a_broken_file_changes_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = recipients(file, "info alice\n")
    assert found.find("info") == ("alice",)
    file.write_text("info dave\n")
    assert found.find("info") == ("dave",)
    for broken in (b"", b"info alice", b"\xff\n", b"x" * (1 << 20) + b"\n"):
        file.write_bytes(broken)
        assert found.find("info") == ("dave",)
        [told] = found.unreadable()
        assert told.startswith(f"{file}: the aliases cannot be read, so the node keeps the last ones: ")
        assert told in caplog.text
    file.unlink()
    assert found.find("info") == ("dave",)
    file.write_text("info alice, dave\n")
    assert found.find("info") == ("alice", "dave")
    assert found.unreadable() == []


def test_without_a_first_reading_nobody_is_refused(file: Path) -> None:
    found = Recipients(USERS, file)
    with pytest.raises(UsersUnavailableError):
        found.find("alice")
    file.write_text("info alice\n")
    assert found.find("info") == ("alice",)


async def test_mail_to_an_alias_that_has_just_gone_waits(file: Path, autojump_clock: trio.testing.MockClock) -> None:
    found = recipients(file, "info alice\n@example.net dave\n")
    await trio.Path(file).write_text("# none\n")
    for address in ("info+x@example.org", "anybody@example.net"):
        with pytest.raises(UsersUnavailableError):
            found.find(address)
    assert found.find("alice@example.net") == ("alice",)
    await trio.sleep(LEAVING_S)
    assert found.find("info@example.org") == found.find("anybody@example.net") == ()


@pytest.mark.parametrize(
    ("address", "users"),
    [
        ("info@example.net", ("dave",)),  # not yet to the catch-all address
        ("alice@example.org", ("alice",)),  # not yet to the user of the name alone
        ("team@example.org", ("dave",)),  # nor to some of a list, without those of a list in it
        ("inner@example.org", ()),
    ],
)
async def test_nobody_gets_mail_in_place_of_an_alias_that_has_just_gone(
    file: Path, autojump_clock: trio.testing.MockClock, address: str, users: tuple[str, ...]
) -> None:
    kept = "@example.net dave\nteam@example.org dave, inner@example.org\ninfo+x@example.net alice\n"
    found = recipients(
        file, f"{kept}info@example.net alice\ninner@example.org alice, bob@example.org\nalice@example.org dave\n"
    )
    before = found.find(address)
    await trio.Path(file).write_text(kept)
    for _ in range(2):
        with pytest.raises(UsersUnavailableError):
            found.find(address)
        assert found.find("info+x@example.net") == ("alice",)  # comes before what has gone
        await trio.Path(file).write_text(kept + "# another change\n")
    assert before != users
    await trio.sleep(LEAVING_S)
    assert found.find(address) == users


async def test_an_alias_waits_for_its_whole_time_and_no_longer_than_it_is_gone(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    found = recipients(file, "one alice\ntwo alice\nlast alice\n")
    for text in ("two alice\nlast alice\n", "last alice\n"):  # each change loses one
        await trio.Path(file).write_text(text)
        found.refresh()
        await trio.sleep(LEAVING_S / 2 - 1)
    for address in ("one", "two"):
        with pytest.raises(UsersUnavailableError):
            found.find(address)
    await trio.sleep(2)
    assert found.find("one") == ()
    await trio.Path(file).write_text("last alice\ntwo dave\n")
    assert found.find("two") == ("dave",)


def test_users_of_other_clusters_are_no_targets(tmp_path: Path, file: Path) -> None:
    (tmp_path / "users").write_text("alice:*:cluster=east\nbob:*:cluster=west\n")
    file.write_text("info alice, bob\nonly bob\n")
    found = Recipients(UserDirectory(tmp_path / "users", site=Site("east", has_others=True)), file)
    assert found.find("info") == ("alice",)
    with pytest.raises(UsersUnavailableError, match="the mail of bob is in another cluster"):
        found.find("only")
    assert [one.partition(" ")[0] for one in found.problems()] == [f"{file}:1:", f"{file}:2:"]


def test_large_files_are_refused(file: Path) -> None:
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(AliasFileError):
        read_aliases(file)
