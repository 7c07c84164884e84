"""Master users of a passwd-file, who act as users whom a server knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.errors import UsersUnavailableError
from replicator.user_sources import users_of_server
from replicator.users import ExternalDirectory, Login, add_user, set_disabled, set_password
from replicator.users.elsewhere.answers import KNOWN_S
from replicator.users.logins import REMEMBER_S
from tests.user_sources.endpoint import Endpoint, config_of, serving


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with serving() as server:
        yield server


@pytest.fixture
def masters(tmp_path: Path) -> Path:
    file = tmp_path / "masters.passwd"
    add_user(file, "admin", "mighty", scheme="PLAIN")
    return file


@pytest.fixture
def users(server: Endpoint, masters: Path) -> ExternalDirectory:
    config = config_of(server)
    return users_of_server(config, lambda: 1_000, CollectorRegistry(), masters=masters, separator="*")


async def test_master_acts_as_a_user_of_the_server(server: Endpoint, users: ExternalDirectory) -> None:
    assert users.has_masters
    first = await users.verify("Alice@Example.org*admin", "mighty", address="192.0.2.1")
    assert first
    assert first == Login("alice", first.password, address="192.0.2.1", master="admin")
    assert await users.verify("alice*admin", "mighty", address="192.0.2.1") == first, "it is remembered"
    assert await users.verify("admin", "mighty", address="192.0.2.1", as_user="alice") == first
    assert users.holds(first)
    assert {question["request"] for question in server.questions} == {"look_up"}, "it never hears of the password"


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice*admin", "secret"),  # the user's own
        ("alice*bob", "hidden"),  # a user is no master
        ("admin", "mighty"),  # a master is no user
        ("nobody*admin", "mighty"),
        ("bob*admin", "mighty"),  # disabled
        ("alice*admin", ""),
    ],
)
async def test_others_are_refused(users: ExternalDirectory, name: str, password: str) -> None:
    assert await users.verify(name, password) is None
    assert await users.verify("alice*admin", "mighty")


async def test_session_ends_with_the_master_or_its_password(users: ExternalDirectory, masters: Path) -> None:
    login = await users.verify("alice*admin", "mighty")
    assert login
    set_disabled(masters, "admin", disabled=True)
    assert not users.holds(login)
    assert users.shuts_out("alice*admin", None) == "the master user is disabled"
    assert await users.verify("alice*admin", "mighty") is None
    set_disabled(masters, "admin", disabled=False)
    assert users.holds(login)
    set_password(masters, "admin", "new", scheme="PLAIN")
    assert not users.holds(login)
    assert await users.verify("alice*admin", "mighty") is None


async def test_master_acts_as_a_known_user_while_the_server_is_down(
    server: Endpoint, users: ExternalDirectory, mock_clock: trio.testing.MockClock
) -> None:
    assert await users.verify("alice*admin", "mighty")
    server.says = 500, b""
    mock_clock.jump(REMEMBER_S)
    assert await users.verify("alice*admin", "mighty")
    mock_clock.jump(KNOWN_S)
    with pytest.raises(UsersUnavailableError):
        await users.verify("alice*admin", "mighty")


@pytest.mark.parametrize(
    ("name", "password", "user", "reasons"),
    [
        ("alice*admin", "mighty", "alice", []),
        ("alice*admin", "x", "alice", ["wrong_password"]),
        ("alice*nobody", "x", "alice", ["no_such_master"]),
        ("nobody*admin", "mighty", None, ["no_such_user"]),
        ("bob*admin", "mighty", "bob", ["disabled"]),
    ],
)
async def test_trial_knows_masters(
    users: ExternalDirectory, name: str, password: str, user: str | None, reasons: list[str]
) -> None:
    trial = await users.try_login(name, password)
    assert (trial.user, trial.master) == (user, name.partition("*")[2])
    assert [reason.obstacle for reason in trial.reasons] == reasons


async def test_missing_file_of_masters_keeps_no_user_out(server: Endpoint, tmp_path: Path) -> None:
    config, none = config_of(server), tmp_path / "none"
    users = users_of_server(config, lambda: 1_000, CollectorRegistry(), masters=none, separator="*")
    assert await users.verify("alice", "secret")
    with pytest.raises(UsersUnavailableError):
        await users.verify("alice*admin", "mighty")
    assert users.unreadable() == []
    [problem] = users.problems()
    assert "so no master user can log in" in problem
