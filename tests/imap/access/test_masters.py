"""Master users, who log in by their own passwords and act as others; in the core, and in a door's process."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

import dataclasses
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry, generate_latest

from replicator.imap.services import ImapServices
from replicator.runtime.metrics import ImapMetrics
from replicator.users import (
    ClientFirst,
    ScramExchange,
    UserDirectory,
    add_user,
    delete_user,
    set_disabled,
    set_password,
)
from replicator.users.attempts.throttle import FREE_FAILURES_PAIR
from tests.imap.arrangements import ARRANGEMENTS
from tests.imap.client import LOOPBACK, Client, connected, services
from tests.one_door import remote_users
from tests.one_node import HookedMail, run_inline
from tests.scram_client import ScramClient

REFUSED = "t NO [AUTHENTICATIONFAILED] Wrong user name or password"


@pytest.fixture
def masters(tmp_path: Path) -> Path:
    """The passwd-file of the master `admin`, whose password is `mighty`; a user of the same name has another one."""
    file = tmp_path / "masters.passwd"
    add_user(file, "admin", "mighty", scheme="PLAIN")
    return file


@pytest.fixture
def users(path: Path, masters: Path) -> UserDirectory:
    add_user(path, "admin", "own", scheme="PLAIN")
    add_user(path, "carol", "secret", scheme="PLAIN")
    set_disabled(path, "carol", disabled=True)
    return UserDirectory(path, run_in_thread=run_inline, masters=masters, separator="*")


@pytest.fixture(params=ARRANGEMENTS)
async def served(
    users: UserDirectory, mail: HookedMail, path: Path, masters: Path, request: pytest.FixtureRequest
) -> AsyncIterator[ImapServices]:
    if request.param == "in the core":
        yield dataclasses.replace(services(mail), users=users)
        return
    here = UserDirectory(path, key=users.key, masters=masters, separator="*")
    async with remote_users(users, here) as (apart, _):
        yield dataclasses.replace(services(mail), users=apart)


def plain(authorize: str, name: str, password: str) -> str:
    return "AUTHENTICATE PLAIN " + b64encode(f"{authorize}\0{name}\0{password}".encode()).decode()


async def acts_as_alice(client: Client) -> bool:
    return (await client.run("SELECT hers"))[-1].startswith("t OK ")


@pytest.mark.parametrize(
    "command",
    [
        'LOGIN "alice*admin" mighty',
        'LOGIN "Alice@Example.org*ADMIN" mighty',
        plain("", "alice*admin", "mighty"),
        plain("alice", "admin", "mighty"),
    ],
)
async def test_a_master_acts_as_a_user(
    served: ImapServices, mail: HookedMail, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    caplog.set_level(logging.INFO)
    registry = CollectorRegistry()
    served = dataclasses.replace(served, metrics=ImapMetrics(registry))
    await mail.create_folder("alice", "hers")
    async with connected(served) as client:
        assert (await client.run(command))[-1].startswith("t OK ")
        assert await acts_as_alice(client)
        [[session], _] = await served.sessions.page(0)
        assert (session.user, session.master) == ("alice", "admin")
    said = [record.getMessage() for record in caplog.records if record.name == "replicator.imap.handlers.auth"]
    assert said[-1].startswith("login ok user=alice master=admin ")
    assert b'replicator_imap_master_logins_total{master="admin"} 1.0' in generate_latest(registry)


@pytest.mark.parametrize("is_named_apart", [False, True])
async def test_a_master_proves_its_password_by_scram(
    served: ImapServices,
    masters: Path,
    is_named_apart: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    set_password(masters, "admin", "mighty", scheme="SCRAM-SHA-256")
    asked = ScramClient("admin", "mighty", "n,a=alice,") if is_named_apart else ScramClient("alice*admin", "mighty")
    users = served.users
    as_user = "alice" if is_named_apart else None
    assert users.scram_keys(asked.user, as_user).iterations == 100_000
    assert users.lacks_scram("alice*nobody") is users.lacks_scram("alice*admin") is False
    exchange = ScramExchange(ClientFirst.parse(asked.first().encode()), users.scram_keys(asked.user, as_user), "nonce")
    attempt = exchange.attempt(asked.last(exchange.challenge().decode()).encode())
    login = await users.verify_scram(asked.user, attempt, as_user=as_user)
    assert login
    assert (login.user, login.master) == ("alice", "admin")


@pytest.mark.parametrize(
    "command",
    [
        "LOGIN admin mighty",  # a master is no user
        'LOGIN "admin*admin" mighty',
        'LOGIN "admin*admin" own',
        plain("admin", "admin", "mighty"),
        'LOGIN "alice*admin" secret',  # the user's password, the password of the user of the master's name
        'LOGIN "alice*admin" own',
        'LOGIN "alice*nobody" mighty',
        'LOGIN "nobody*admin" mighty',
        'LOGIN "*admin" mighty',
        'LOGIN "alice*" mighty',
        'LOGIN "alice*bob" secret',  # a user is no master
        plain("alice", "bob", "secret"),
        plain("alice", "alice*admin", "mighty"),
    ],
)
async def test_others_are_refused_as_by_a_wrong_password(served: ImapServices, command: str) -> None:
    async with connected(served) as client:
        assert await client.run(command) == [REFUSED]
        assert (await client.run("LOGIN admin own"))[-1].startswith("t OK ")


async def test_a_disabled_user_or_master_is_refused_and_the_session_ends(
    served: ImapServices, path: Path, masters: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for file, name in ((path, "alice"), (masters, "admin")):
        async with connected(served) as before, connected(served) as after:
            assert (await before.run('LOGIN "alice*admin" mighty'))[-1].startswith("t OK ")
            set_disabled(file, name, disabled=True)
            assert (await before.run("NOOP"))[0].startswith("* BYE ")
            assert await after.run(plain("alice", "admin", "mighty")) == [REFUSED]
            said = [one.getMessage() for one in caplog.records if one.name == "replicator.imap.handlers.auth"]
            assert said[-1].startswith("login failed user=alice master=admin ")
            assert "disabled" in said[-1]
            set_disabled(file, name, disabled=False)


async def test_a_session_ends_with_the_password_or_the_line_of_its_master(served: ImapServices, masters: Path) -> None:
    async with connected(served) as first, connected(served) as second:
        assert (await first.run('LOGIN "alice*admin" mighty'))[-1].startswith("t OK ")
        set_password(masters, "admin", "new", scheme="PLAIN")
        assert (await first.run("NOOP"))[0].startswith("* BYE ")
        assert (await second.run('LOGIN "alice*admin" new'))[-1].startswith("t OK ")
        delete_user(masters, "admin")
        assert (await second.run("NOOP"))[0].startswith("* BYE ")


async def test_failures_count_for_the_master(users: UserDirectory, autojump_clock: trio.testing.MockClock) -> None:
    for user in ("alice", "bob", "alice", "nobody"):
        assert await users.verify(f"{user}*admin", "wrong", address=LOOPBACK) is None
    [penalty] = users.penalties()
    assert (penalty.user, penalty.failures) == ("*admin", FREE_FAILURES_PAIR + 1)
    assert (await users.try_login("alice*admin", "mighty")).slowed == (LOOPBACK,)
    assert users.forgive("*admin") == 1


async def test_a_master_comes_from_its_own_networks(tmp_path: Path) -> None:
    """The networks of the user do not matter: an administrator does not sit in the user's office."""
    path, masters = tmp_path / "users", tmp_path / "masters"
    await trio.Path(path).write_text("alice:{PLAIN}a::::::allow_nets=192.0.2.0/24\n")
    await trio.Path(masters).write_text("admin:{PLAIN}m::::::allow_nets=198.51.100.0/24\n")
    users = UserDirectory(path, run_in_thread=run_inline, masters=masters, separator="%")
    login = await users.verify("alice%admin", "m", address="198.51.100.1")
    assert login
    assert users.holds(login)
    assert await users.verify("alice%admin", "m", address="192.0.2.1") is None
    assert "master user may log in from 198.51.100.0/24 only" in str(users.shuts_out("alice%admin", "192.0.2.1"))


@pytest.mark.parametrize(
    ("name", "password", "user", "reasons"),
    [
        ("alice*admin", "mighty", "alice", []),
        ("alice*admin", "x", "alice", ["wrong_password"]),
        ("alice*nobody", "x", "alice", ["no_such_master"]),
        ("nobody*admin", "mighty", None, ["no_such_user"]),
        ("carol*admin", "mighty", "carol", ["disabled"]),
    ],
)
async def test_a_trial_knows_masters(
    users: UserDirectory, name: str, password: str, user: str | None, reasons: list[str]
) -> None:
    trial = await users.try_login(name, password)
    assert (trial.user, trial.master) == (user, name.partition("*")[2])
    assert [reason.obstacle for reason in trial.reasons] == reasons


async def test_without_masters_names_are_whole_and_nobody_acts_for_another(path: Path, mail: HookedMail) -> None:
    add_user(path, "alice*admin", "whole", scheme="PLAIN")
    users = UserDirectory(path, run_in_thread=run_inline)
    async with connected(dataclasses.replace(services(mail), users=users)) as client:
        answer = "t NO [AUTHORIZATIONFAILED] Acting for another user is not supported here"
        assert await client.run(plain("alice", "admin", "mighty")) == [answer]
        assert (await client.run('LOGIN "alice*admin" whole'))[-1].startswith("t OK ")


async def test_without_a_separator_the_names_come_apart_only(path: Path, masters: Path) -> None:
    users = UserDirectory(path, run_in_thread=run_inline, masters=masters)
    assert await users.verify("alice*admin", "mighty") is None
    assert await users.verify("admin", "mighty", as_user="alice")


async def test_a_user_whose_name_looks_like_a_masters_count_is_no_master(path: Path, masters: Path) -> None:
    add_user(path, "*admin", "low", scheme="PLAIN")
    users = UserDirectory(path, run_in_thread=run_inline, masters=masters)
    for _ in range(2):  # each password is remembered the second time
        assert await users.verify("*admin", "low")
        assert await users.verify("admin", "low", as_user="alice") is None
        assert await users.verify("admin", "mighty", as_user="alice")
        assert await users.verify("*admin", "mighty") is None


async def test_a_missing_file_of_masters_keeps_no_user_out(path: Path, tmp_path: Path) -> None:
    users = UserDirectory(path, run_in_thread=run_inline, masters=tmp_path / "none", separator="*")
    [problem] = users.problems()
    assert "so no master user can log in" in problem
    assert users.unreadable() == []
    assert await users.verify("alice", "secret")
