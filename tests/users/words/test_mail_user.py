"""Log-in names that open another user's mail, by the word `user=NAME` of their lines, and users who are renamed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from replicator.errors import OtherClusterError, UsersUnavailableError
from replicator.users import (
    ClientFirst,
    Identity,
    MailNames,
    PasswdFileError,
    QuotaLimits,
    Recipients,
    ScramExchange,
    Site,
    UserDirectory,
    UserExistsError,
    UserUnknownError,
    add_user,
    delete_user,
    find_account,
    list_accounts,
    list_users,
    rename_user,
    set_disabled,
    set_password,
)
from replicator.users.followed_file import LEAVING_S
from replicator.users.words.mail_user import mail_user, with_mail_user
from tests.one_node import run_inline
from tests.scram_client import ScramClient

FAR_MS = 1 << 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    path.write_text("Alice:{PLAIN}a:::::: quota_storage=1GiB\r\nbob:{PLAIN}b\n")
    return path


@pytest.fixture
def users(file: Path) -> UserDirectory:
    return UserDirectory(file, run_in_thread=run_inline)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", None),
        (":::::user=Alice@Example.org", "alice@example.org"),
        ("user=alice:::::nologin", "alice"),
        (":::::quota_storage=1GiB user=alice cluster=east", "alice"),
        (":::::userdb_user=alice master_user=bob", None),
    ],
)
def test_the_word_names_the_user(fields: str, expected: str | None) -> None:
    assert mail_user(fields) == expected


@pytest.mark.parametrize("fields", [":::::user=", ":::::user=#x", f"user={'x' * 255}", "user=a:user=a", "user=%n"])
def test_a_word_that_names_nobody_is_refused(fields: str) -> None:
    with pytest.raises(ValueError, match=r"user: .*until it is corrected, mail for this name waits"):
        mail_user(fields)


WORDS = st.sampled_from(["user=eve", "user=", ":", " "])


@given(st.lists(st.text(":n=x \t\u2003", max_size=3) | WORDS, max_size=12))
def test_whatever_the_fields_the_word_is_there_once_or_not(pieces: list[str]) -> None:
    line = b"alice:*:" + "".join(pieces).encode()
    for user in ("bob", None):
        _, _, fields = with_mail_user(line, user).decode().split(":", 2)
        assert mail_user(fields) == user


async def test_a_renamed_user_has_the_same_mail_by_every_log_in(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    set_password(file, "alice", "a", scheme="SCRAM-SHA-256")

    async def logins(name: str) -> list[str | None]:
        client = ScramClient(name, "a")
        exchange = ScramExchange(ClientFirst.parse(client.first().encode()), users.scram_keys(name), "nonce")
        attempt = exchange.attempt(client.last(exchange.challenge().decode()).encode())
        found = [
            await users.verify(name, "a"),
            await users.verify_scram(name, attempt),
            await users.admit(name, Identity(name, FAR_MS)),
        ]
        assert all(users.holds(login) for login in found if login is not None)
        return [login.user if login is not None else None for login in found]

    sessions = [await users.verify("alice", "a"), await users.admit("alice", Identity("alice", FAR_MS))]
    assert rename_user(file, "ALICE", "Alicia@Example.org") == "alice"
    assert not any(users.holds(session) for session in sessions if session), "clients log in by the new name"
    await trio.sleep(LEAVING_S)
    assert await logins("alicia+x@example.org") == ["alice"] * 3
    assert await logins("alice") == [None] * 3
    assert (users.find("ALICIA@example.org"), users.find("alice")) == ("alice", None)
    assert await users.quota_limits("alice") == QuotaLimits(storage_bytes=1 << 30)
    assert (await users.quota_limits("alicia@example.org")) == QuotaLimits()
    assert users.users() == ["bob", "alicia@example.org"] or users.users() == ["alicia@example.org", "bob"]
    session = await users.verify("alicia@example.org", "a")
    assert session
    set_disabled(file, "alicia@example.org", disabled=True)
    assert not users.holds(session)
    assert await logins("alicia@example.org") == [None] * 3
    assert users.find("alicia@example.org") == "alice"


def test_renames_keep_the_rest_of_the_line_and_end_where_they_began(file: Path) -> None:
    before = file.read_bytes()
    assert rename_user(file, "alice", "ALICIA") == "alice"
    assert file.read_bytes() == before.replace(b"Alice:", b"alicia:").replace(b"1GiB", b"1GiB user=alice")
    assert rename_user(file, "Alicia", "ally") == "alice", "the mail is still that of the first name"
    assert file.read_bytes() == before.replace(b"Alice:", b"ally:").replace(b"1GiB", b"1GiB user=alice")
    assert rename_user(file, "ally", "Alice") == "alice"
    assert file.read_bytes() == before.replace(b"Alice:", b"alice:")


def test_nobody_gets_the_name_of_anothers_mail(file: Path) -> None:
    rename_user(file, "alice", "alicia")
    before = file.read_bytes()
    with pytest.raises(UserExistsError, match="'alice' is the user whose mail 'alicia' opens: somebody else of this"):
        add_user(file, "Alice", "x", scheme="PLAIN")
    with pytest.raises(UserExistsError, match="'alice' is the user whose mail 'alicia' opens"):
        rename_user(file, "bob", "alice")
    with pytest.raises(UserExistsError, match="'Bob' already exists"):
        rename_user(file, "alicia", "Bob")
    with pytest.raises(UserUnknownError, match="no user 'alice'"):
        rename_user(file, "alice", "eve")
    with pytest.raises(PasswdFileError, match="not changed: a user name must have no colon"):
        rename_user(file, "bob", "b:b")
    assert file.read_bytes() == before
    file.write_bytes(before + b"BOB:{PLAIN}old\n")
    with pytest.raises(PasswdFileError, match="user 'bob' is in two lines"):
        rename_user(file, "bob", "robert")
    file.write_bytes(before)
    delete_user(file, "alicia")
    add_user(file, "alice", "x", scheme="PLAIN")
    assert list_users(file) == ["bob", "alice"]


def test_several_log_ins_open_one_mail(file: Path, users: UserDirectory) -> None:
    with file.open("a") as stream:
        stream.write("zoe:*::::::user=TEAM quota_messages=5\nyan:*::::::user=team\nbobby:*::::::user=bob user_x=1\n")
    assert [users.find(name) for name in ("zoe", "yan", "team", "bobby")] == ["team", "team", None, "bob"]
    assert [users.names_of(user) for user in ("team", "bob", "zoe")] == [["yan", "zoe"], ["bob", "bobby"], []]
    accounts = {account.user: account for account in list_accounts(file, QuotaLimits())}
    assert [accounts[name].mail_user for name in ("zoe", "yan", "bob", "bobby")] == ["team", "team", "bob", "bob"]
    assert [accounts[name].messages_limit for name in ("zoe", "yan", "bob")] == [5, 5, None]
    assert users.problems() == []


async def test_the_old_name_of_a_renamed_user_means_nobody_else(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    add_user(file, "alice@b.org", "x", scheme="PLAIN")
    assert users.find("Alice@B.org") == "alice@b.org"
    rename_user(file, "alice@b.org", "alicia@b.org")
    users.refresh()
    await trio.sleep(LEAVING_S)
    names = ["alice@b.org", "alice+lists@b.org", "alice@c.org"]
    assert [users.find(name) for name in names] == [None, None, "alice"]
    assert [Recipients(users).find(name) for name in names] == [(), (), ("alice",)]
    for name in names[:2]:
        assert await users.verify(name, "a") is None
        assert await users.admit(name, Identity("alice", FAR_MS)) is None
        assert await users.admit("alice", Identity(name, FAR_MS)) is None
        assert await users.account(name) is None
        [reason] = (await users.try_login(name, "a")).reasons
        assert reason.obstacle == "no_such_user"
    shown = find_account(file, "alice@b.org", QuotaLimits())
    assert shown
    assert (shown.user, shown.mail_user) == ("alicia@b.org", "alice@b.org")
    assert find_account(file, "alice+lists@b.org", QuotaLimits()) is None
    told = users.shuts_out("alice@b.org", None)
    assert told
    assert "the user alice@b.org logs in as alicia@b.org" in told
    rename_user(file, "alicia@b.org", "ally@b.org")
    users.refresh()
    assert users.find("alice@b.org") is None
    await trio.sleep(LEAVING_S)
    assert users.find("alicia@b.org") is None
    add_user(file, "alicia", "x", scheme="PLAIN")
    assert users.find("alicia@b.org") == "alicia", "a name in between is free"


async def test_mail_for_the_old_name_waits_while_half_a_file_lacks_the_new_one(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    whole = "alice:*\nalicia@b.org:*::::::user=alice@b.org\n"
    await trio.Path(file).write_text(whole)
    assert users.find("alice@b.org") is None
    await trio.Path(file).write_text("alice:*\n")
    with pytest.raises(UsersUnavailableError, match="has just changed"):
        users.find("alice@b.org")
    await trio.Path(file).write_text(whole)
    assert users.find("alice@b.org") is None
    await trio.Path(file).write_text("alice:*\n")
    users.refresh()
    await trio.sleep(LEAVING_S)
    assert users.find("alice@b.org") == "alice", "the other user is gone"


async def test_nobody_gets_a_name_while_it_is_not_known_whose_mail_another_opens(
    file: Path, users: UserDirectory
) -> None:
    before = b"zoe:*::::::user=%n\nbob:*\n"
    await trio.Path(file).write_bytes(before)
    for change in (partial(add_user, file, "carol", "x", scheme="PLAIN"), partial(rename_user, file, "bob", "carol")):
        with pytest.raises(UserExistsError, match="not known whose mail 'zoe' opens, and it may be that of 'carol'"):
            change()
    assert await trio.Path(file).read_bytes() == before
    for name in ("carol", "bob"):
        with pytest.raises(UsersUnavailableError, match="not known now whose mail zoe opens"):
            users.names_of(name)
    assert users.name_meant("bob") == "bob"
    delete_user(file, "zoe")
    add_user(file, "carol", "x", scheme="PLAIN")
    assert users.names_of("carol") == ["carol"]


async def test_lines_that_make_no_sense_have_nothing_in_common(file: Path, users: UserDirectory) -> None:
    lines = ["ann:*::::::user=%n quota_messages=5", "bob:*::::::user=%{user}", "zoe:*::::::user="]
    await trio.Path(file).write_text("".join(f"{line}\n" for line in lines))
    assert len(users.problems()) == 3
    assert await users.quota_limits("") == QuotaLimits()
    assert [account.messages_limit for account in users.accounts()] == [None] * 3
    assert {account.mail_user for account in users.accounts()} == {""}
    for name in ("ann", "bob", "zoe"):
        with pytest.raises(UsersUnavailableError, match="it is not known now whose mail"):
            users.find(name)


def test_who_else_opens_the_mail_is_told(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"# user=alice\nZoe:*::::::user=Alice\nyan:*::::::user=alice\n")
        stream.write(b"\xff:*::::::user=alice\nx:*::::::user=%n\n")
    assert set_disabled(file, "Alice", disabled=True) == MailNames("alice", ("yan", "zoe"))
    assert set_disabled(file, "zoe", disabled=True) == MailNames("alice", ("alice", "yan"))
    assert set_disabled(file, "bob", disabled=True) == MailNames("bob")
    assert set_disabled(file, "x", disabled=True) == MailNames("")
    assert delete_user(file, "alice") == MailNames("alice", ("yan", "zoe"))
    assert delete_user(file, "yan") == MailNames("alice", ("zoe",))
    assert delete_user(file, "zoe") == MailNames("alice")


async def test_operators_may_name_a_user_by_the_mail(file: Path, users: UserDirectory) -> None:
    assert users.name_meant("Alice@Example.org") == "Alice@Example.org"
    rename_user(file, "alice", "alicia")
    assert [users.name_meant(name) for name in ("ALICE", "alicia", "eve")] == ["alicia", "alicia", "eve"]
    await trio.Path(file).unlink()
    assert users.name_meant("alice") == "alicia"
    assert UserDirectory(file).name_meant("alice") == "alice"


async def test_a_log_in_that_has_just_gone_may_come_back(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    rename_user(file, "alice", "alicia")
    assert users.names_of("alice") == ["alicia"]
    delete_user(file, "alicia")
    with pytest.raises(UsersUnavailableError, match="has just changed"):
        users.names_of("alice")
    await trio.sleep(LEAVING_S)
    assert users.names_of("alice") == []


async def test_a_users_own_line_sets_the_quota_before_others_do(file: Path, users: UserDirectory) -> None:
    with file.open("a") as stream:
        stream.write("aaron:*::::::user=alice quota_storage=7GiB\nbobby:*::::::user=bob quota_messages=7\n")
    assert await users.quota_limits("alice") == QuotaLimits(storage_bytes=1 << 30)
    assert await users.quota_limits("bob") == QuotaLimits(messages=7)


async def test_a_session_ends_when_its_log_in_opens_another_users_mail(file: Path, users: UserDirectory) -> None:
    bob = await users.verify("bob", "b")
    assert bob
    assert users.holds(bob)
    await trio.Path(file).write_text("alice:{PLAIN}a\nbob:{PLAIN}b::::::user=alice\n")
    assert not users.holds(bob)
    again = await users.verify("bob", "b")
    assert again
    assert (again.user, users.holds(again)) == ("alice", True)
    await trio.Path(file).write_text("alice:{PLAIN}a\n")  # in place: bob may come back
    assert users.holds(again)


async def test_a_word_without_sense_is_reported_and_mail_waits(file: Path, users: UserDirectory) -> None:
    await trio.Path(file).write_text("# users\nalice:{PLAIN}a::::::user=\nbob:{PLAIN}b\n")
    [problem] = users.problems()
    assert problem.startswith(f"{file}:2: user: a user name must have 1 to")
    with pytest.raises(UsersUnavailableError, match="it is not known now whose mail alice opens"):
        Recipients(users).find("alice")
    with pytest.raises(UsersUnavailableError):
        await users.verify("alice", "a")
    assert await users.verify("alice", "x") is None
    [reason] = (await users.try_login("alice", "a")).reasons
    assert (reason.obstacle, "`user=` in the line makes no sense" in reason.text) == ("no_mail", True)
    assert users.find("bob") == "bob"
    with pytest.raises(PasswdFileError, match="not changed: user: a user name must have"):
        rename_user(file, "alice", "alicia")


async def test_who_logs_in_by_the_old_name_is_told_the_new_one_in_the_log_alone(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    rename_user(file, "alice", "alicia")
    users.refresh()
    await trio.sleep(LEAVING_S)
    assert await users.verify("alice", "a") is None
    told = "there is no user 'alice', nor one by a part of this name; the user alice logs in as alicia"
    assert users.shuts_out("Alice", None) == told
    [reason] = (await users.try_login("Alice", "a")).reasons
    assert reason.text == told
    assert users.shuts_out("nobody", None) is None


async def test_masters_act_by_log_in_names(file: Path, tmp_path: Path) -> None:
    masters = tmp_path / "masters.passwd"
    add_user(masters, "admin", "mighty", scheme="PLAIN")
    users = UserDirectory(file, run_in_thread=run_inline, masters=masters, separator="*")
    rename_user(file, "alice", "alicia")
    login = await users.verify("alicia*admin", "mighty")
    assert login
    assert (login.user, login.master, users.holds(login)) == ("alice", "admin", True)
    trial = await users.try_login("alicia*admin", "mighty")
    assert (trial.user, trial.reasons) == ("alice", ())
    set_disabled(file, "alicia", disabled=True)
    assert not users.holds(login)
    assert await users.verify("alicia*admin", "mighty") is None


async def test_failures_count_for_the_log_in_name_and_are_forgiven_by_either(
    file: Path,
    users: UserDirectory,
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - requested for its effect
) -> None:
    rename_user(file, "alice", "alicia")
    users.refresh()
    await trio.sleep(LEAVING_S)
    for name in ("alice", "alicia"):
        for _ in range(4):
            assert await users.verify("alicia", "wrong", address="192.0.2.1") is None
        assert "alicia" in {penalty.user for penalty in users.penalties()}
        assert users.forgive(name) > 0
        assert "alicia" not in {penalty.user for penalty in users.penalties()}


async def test_the_cluster_is_that_of_the_log_ins_line(file: Path) -> None:
    await trio.Path(file).write_text("alicia:{PLAIN}a:cluster=east:::::user=alice\nbob:{PLAIN}b:cluster=west\n")
    east, west = (UserDirectory(file, run_in_thread=run_inline, site=Site(name)) for name in ("east", "west"))
    login = await east.verify("alicia", "a")
    assert login
    assert (login.user, east.holds(login), west.holds(login)) == ("alice", True, False)
    assert west.home_of("alicia") == ("alicia", "east"), "proxies hand the client's own name on"
    with pytest.raises(OtherClusterError):
        west.find("alicia")
    with pytest.raises(OtherClusterError):
        await west.verify("alicia", "a")


async def test_aliases_lead_to_log_in_names(file: Path, users: UserDirectory, tmp_path: Path) -> None:
    rename_user(file, "alice", "alicia")
    aliases = tmp_path / "aliases"
    aliases.write_text("info alice, bob\nalice alicia\n")
    recipients = Recipients(users, aliases)
    assert recipients.find("alice@example.org") == ("alice",)
    assert recipients.find("info@example.org") == ("alice", "bob")
