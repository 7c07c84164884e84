"""Log-ins that operators try, and penalties that they end."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from replicator.errors import UsersUnavailableError
from replicator.users import Penalty, Site, UserDirectory
from replicator.users.attempts.throttle import DELAY_MAX_S, EXCESS_MAX, FREE_FAILURES_PAIR, LEAK_S
from tests.one_node import run_inline

T = TypeVar("T")

USERS = """\
alice:{PLAIN}secret:cluster=east
bob:{PLAIN}secret:cluster=west
carol:{PLAIN}secret:cluster=east:::::nologin
dave:*:cluster=east
erin:{MD5}hash:cluster=east
frank:{PLAIN}secret
"""


@pytest.fixture
def users(tmp_path: Path) -> UserDirectory:
    file = tmp_path / "users.passwd"
    file.write_text(USERS)
    return UserDirectory(file, run_in_thread=run_inline, site=Site("east", has_others=True))


async def fail(users: UserDirectory, name: str, address: str, times: int) -> None:
    for _ in range(times):
        assert await users.verify(name, "wrong", address=address) is None


@pytest.mark.parametrize(
    ("name", "password", "user", "reasons"),
    [
        ("Alice@example.org", "secret", "alice", {}),
        ("alice", "wrong", "alice", {"wrong_password": "the password is wrong"}),
        ("nobody", "secret", None, {"no_such_user": "there is no user 'nobody'"}),
        ("bob", "secret", "bob", {"other_cluster": "the mail of bob is in the cluster west"}),
        ("bob", "x", "bob", {"other_cluster": "in the cluster west", "wrong_password": "wrong"}),
        ("carol", "secret", "carol", {"disabled": "carol is disabled"}),
        ("carol", "x", "carol", {"disabled": "carol is disabled", "wrong_password": "wrong"}),
        ("dave", "secret", "dave", {"no_password": "dave has no password"}),
        ("erin", "hash", "erin", {"unusable_hash": "users.passwd:5: unknown password scheme {MD5}"}),
        ("frank", "secret", "frank", {"other_cluster": "the line of frank names no cluster"}),
    ],
)
async def test_the_trial_says_why_not(
    users: UserDirectory, name: str, password: str, user: str | None, reasons: dict[str, str]
) -> None:
    trial = await users.try_login(name, password)
    assert (trial.user, trial.waits_s, trial.slowed) == (user, 0, ())
    assert [reason.obstacle for reason in trial.reasons] == list(reasons)
    for reason in trial.reasons:
        assert reasons[reason.obstacle] in reason.text


async def test_a_trial_counts_as_nobodys_attempt_and_is_not_delayed(
    users: UserDirectory, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(50):
        await users.try_login("alice", "hunter2")
    assert users.penalties() == []
    await fail(users, "alice", "192.0.2.1", FREE_FAILURES_PAIR + EXCESS_MAX)
    began = trio.current_time()
    trial = await users.try_login("alice@example.org", "secret")
    assert trio.current_time() == began
    assert (trial.reasons, trial.slowed) == ((), ("192.0.2.1",))
    assert trial.waits_s == pytest.approx(DELAY_MAX_S)
    assert "hunter2" not in caplog.text


async def test_trials_need_users(tmp_path: Path) -> None:
    with pytest.raises(UsersUnavailableError):
        await UserDirectory(tmp_path / "none").try_login("alice", "x")


async def test_penalties_name_who_waits_and_for_how_long(
    users: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    await fail(users, "alice", "192.0.2.1", FREE_FAILURES_PAIR)
    assert users.penalties() == []
    await fail(users, "alice", "192.0.2.1", 1)
    assert users.penalties() == [Penalty("alice", "192.0.2.1", FREE_FAILURES_PAIR + 1, 0.5, LEAK_S)]
    await trio.sleep(LEAK_S / 2)
    assert users.penalties() == [Penalty("alice", "192.0.2.1", FREE_FAILURES_PAIR + 1, 0, LEAK_S / 2)]
    await trio.sleep(LEAK_S / 2)
    assert users.penalties() == []


async def test_guesses_at_many_users_are_a_penalty_of_the_address(
    users: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(6):
        await fail(users, f"user{number}", "2001:db8::1", 2)
    [penalty] = users.penalties()
    assert (penalty.user, penalty.address) == (None, "2001:db8::/64")
    assert users.forgive("2001:db8::7") == 1
    assert users.penalties() == []


@pytest.mark.parametrize(
    ("of", "left"),
    [
        ("alice", {("dave", "192.0.2.1")}),
        ("ALICE@example.org", {("dave", "192.0.2.1")}),
        ("192.0.2.1", {("alice", "192.0.2.2")}),
        ("nobody", {("alice", "192.0.2.1"), ("alice", "192.0.2.2"), ("dave", "192.0.2.1")}),
        (None, set()),
    ],
)
async def test_penalties_of_a_user_or_an_address_end(
    users: UserDirectory, autojump_clock: trio.testing.MockClock, of: str | None, left: set[tuple[str, str]]
) -> None:
    for user, address in (("alice", "192.0.2.1"), ("alice", "192.0.2.2"), ("dave", "192.0.2.1")):
        await fail(users, user, address, FREE_FAILURES_PAIR + 2)
    assert len(users.penalties()) == 3
    assert users.forgive(of) == 3 - len(left)
    assert {(one.user, one.address) for one in users.penalties()} == left
    if ("alice", "192.0.2.1") not in left:
        began = trio.current_time()
        await fail(users, "alice", "192.0.2.1", FREE_FAILURES_PAIR)
        assert trio.current_time() == began


@pytest.mark.parametrize("extra", ["", "gina:{MD5}x\n"], ids=["patched", "read as a whole"])
async def test_changes_while_a_password_is_checked_count(tmp_path: Path, extra: str) -> None:
    file = tmp_path / "users.passwd"
    file.write_text("alice:{PLAIN}old\nbob:*\ncarol:{PLAIN}secret\n")
    changes = ["alice:{PLAIN}new\nbob:*\ncarol:{PLAIN}secret::::::nologin\n" + extra]

    async def checked_late(work: Callable[[], T]) -> T:
        if changes:
            file.write_text(changes.pop())
        return await run_inline(work)

    users = UserDirectory(file, run_in_thread=checked_late)
    assert (await users.try_login("alice", "new")).reasons == ()
    file.write_text("alice:{PLAIN}old\nbob:*\ncarol:{PLAIN}secret\n")
    users.refresh()
    changes.append("bob:*\n" + extra)
    with pytest.raises(UsersUnavailableError):
        await users.try_login("alice", "old")
    file.write_text("carol:{PLAIN}secret\n")
    users.refresh()
    changes.append("carol:{PLAIN}secret::::::nologin\n" + extra)
    assert await users.verify("carol", "secret") is None
