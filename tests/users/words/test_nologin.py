"""Users who are disabled by the word `nologin` of their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from replicator.users import (
    Account,
    ClientFirst,
    Identity,
    PasswdFileError,
    QuotaLimits,
    ScramExchange,
    UserDirectory,
    UserUnknownError,
    find_account,
    list_accounts,
    set_disabled,
    set_password,
)
from replicator.users.words.nologin import is_disabled, with_nologin
from tests.one_node import run_inline
from tests.scram_client import ScramClient

FAR_MS = 1 << 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    path.write_text("alice:{PLAIN}a\nbob:{PLAIN}b:::::: quota_storage=1GiB\r\n")
    return path


@pytest.fixture
def users(file: Path) -> UserDirectory:
    return UserDirectory(file, run_in_thread=run_inline)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", False),
        (":::::nologin", True),
        (":::::quota_storage=1GiB nologin", True),
        (":::::nologin=yes cluster=east", True),
        (":nologin=Y", True),
        ("nologin", True),
        (":::/sbin/nologin:", False),
        (":::::nologins reason=nologin xnologin", False),
    ],
)
def test_the_word_disables(fields: str, expected: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert is_disabled(fields) is expected


@pytest.mark.parametrize(
    ("line", "disabled"),
    [
        ("alice:{PLAIN}a", "alice:{PLAIN}a::::::nologin"),
        ("alice:*:cluster=east", "alice:*:cluster=east:::::nologin"),
        ("alice:*:1:2:Alice:/home/a:/sbin/nologin:quota_messages=1", None),
        ("alice:*::::::a:b", "alice:*::::::a:b nologin"),
    ],
)
def test_a_line_gets_the_word_once_and_loses_it(line: str, disabled: str | None) -> None:
    changed = with_nologin(line.encode(), disabled=True)
    assert changed.decode() == (disabled or f"{line} nologin")
    assert with_nologin(changed, disabled=True) == changed
    assert with_nologin(changed, disabled=False).rstrip(b":") == line.encode()


WORDS = st.sampled_from(["nologin", "nologin=yes", ":", " "])


@given(st.lists(st.text(":n=x \t\u2003", max_size=3) | WORDS, max_size=12))
def test_whatever_the_fields_the_word_is_there_or_not(pieces: list[str]) -> None:
    line = b"alice:*:" + "".join(pieces).encode()
    for disabled in (True, False):
        _, _, fields = with_nologin(line, disabled=disabled).decode().split(":", 2)
        assert is_disabled(fields) is disabled


async def test_a_disabled_user_logs_in_by_nothing_and_has_mail(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    set_password(file, "alice", "a", scheme="SCRAM-SHA-256")

    async def logins(word: str = "a") -> list[bool]:
        client = ScramClient("alice", word)
        exchange = ScramExchange(ClientFirst.parse(client.first().encode()), users.scram_keys("alice"), "nonce")
        attempt = exchange.attempt(client.last(exchange.challenge().decode()).encode())
        found = [
            await users.verify("alice", word),
            await users.verify_scram("alice", attempt),
            await users.admit("alice", Identity("alice", FAR_MS)),
        ]
        return [login is not None for login in found]

    assert await logins() == [True] * 3
    sessions = [await users.verify("alice", "a"), await users.admit("alice", Identity("alice", FAR_MS))]
    salt = users.scram_keys("alice").salt
    set_disabled(file, "ALICE", disabled=True)
    assert await logins() == [False] * 3
    assert not any(users.holds(session) for session in sessions if session)
    assert "disabled" in (users.shuts_out("Alice@example.org", None) or "")
    assert users.shuts_out("bob", None) is None
    assert (users.find("alice"), users.scram_keys("alice").salt) == ("alice", salt)
    set_password(file, "alice", "new", scheme="SCRAM-SHA-256")
    assert await logins("new") == [False] * 3
    set_disabled(file, "alice", disabled=False)
    assert await logins("new") == [True] * 3


async def test_a_word_without_sense_is_reported_and_lets_nobody_in(file: Path, users: UserDirectory) -> None:
    await trio.Path(file).write_text("# users\nalice:{PLAIN}a::::::nologin=no\n")
    assert await users.verify("alice", "a") is None
    [problem] = users.problems()
    assert problem.startswith(f"{file}:2: nologin: expected the word alone, or `nologin=yes`, not 'no'")


def test_the_rest_of_the_file_stays(file: Path) -> None:
    set_disabled(file, "bob", disabled=True)
    assert file.read_bytes() == b"alice:{PLAIN}a\nbob:{PLAIN}b:::::: quota_storage=1GiB nologin\r\n"
    set_disabled(file, "bob", disabled=False)
    assert file.read_bytes() == b"alice:{PLAIN}a\nbob:{PLAIN}b:::::: quota_storage=1GiB\r\n"
    with pytest.raises(UserUnknownError):
        set_disabled(file, "carol", disabled=True)


def test_accounts_tell_what_the_lines_say(file: Path) -> None:
    with file.open("a") as stream:
        stream.write("carol:*:cluster=east:::::nologin quota_messages=7\n")
    found = list_accounts(file, QuotaLimits(messages=10))
    assert found == [
        Account("alice", "alice", False, True, None, 10, None, str(file)),  # noqa: FBT003 - as the fields stand
        Account("bob", "bob", False, True, 1 << 30, 10, None, str(file)),  # noqa: FBT003
        Account("carol", "carol", True, False, None, 7, "east", str(file)),  # noqa: FBT003
    ]
    assert find_account(file, "Bob+x@Example.org", QuotaLimits(messages=10)) == found[1]
    assert find_account(file, "eve", QuotaLimits()) is None
    with pytest.raises(PasswdFileError, match="cannot be read"):
        list_accounts(file.with_name("none"), QuotaLimits())
