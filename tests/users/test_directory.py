# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from replicator.errors import UsersUnavailableError
from replicator.users import Identity, Login, UserDirectory, add_user, delete_user, set_password
from replicator.users.attempts.throttle import FIRST_DELAY_S
from replicator.users.followed_file import LEAVING_S
from replicator.users.logins import REMEMBER_S

T = TypeVar("T")


PARSER_NAMES = (
    "PLAIN, CLEARTEXT, SHA256, SSHA256, SHA512, SSHA512, CRYPT, BLF-CRYPT, SHA256-CRYPT, SHA512-CRYPT, ARGON2I,"
    " ARGON2ID, SCRAM-SHA-256"
)


class CountingRunner:
    """Runs work inline and counts it, because virtual time does not work with threads."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, work: Callable[[], T]) -> T:
        self.runs += 1
        await trio.lowlevel.checkpoint()
        return work()


FILE = "alice:{PLAIN}secret\nbob:{PLAIN}other\nbroken:{X}y\n"
INCOMPLETE_SIZES = [size for size in range(len(FILE)) if not FILE[:size].endswith("\n")]


def write_file(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "users.passwd"
    write_file(file, FILE)
    return file


@pytest.fixture
def runner() -> CountingRunner:
    return CountingRunner()


@pytest.fixture
def directory(path: Path, runner: CountingRunner) -> UserDirectory:
    return UserDirectory(path, run_in_thread=runner)


def test_users_are_found_without_an_event_loop(directory: UserDirectory, path: Path) -> None:
    assert directory.users() == ["alice", "bob", "broken"]
    assert directory.find("alice") == "alice"
    assert directory.find("broken") == "broken"
    assert directory.find("carol") is None
    assert directory.problems() == [f"{path}:3: unknown password scheme {{X}}; use one of " + PARSER_NAMES]


async def test_only_the_right_password_is_verified(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    assert await directory.verify("alice", "secret")
    assert not await directory.verify("alice", "other")
    assert not await directory.verify("broken", "y")
    assert not await directory.verify("nobody", "secret")
    assert not await directory.verify("alice", "")
    assert not await directory.verify("alice", "secret\0")
    assert not await directory.verify("alice", "\udcff")
    assert await directory.verify("alice", "secret")


async def test_argon2_hash_is_verified_in_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "p"
    add_user(path, "alice", "secret")
    directory = UserDirectory(path)
    assert await directory.verify("alice", "secret")
    assert not await directory.verify("alice", "other")
    assert not await directory.verify("nobody", "secret")


async def test_a_right_password_is_remembered_for_a_while(
    directory: UserDirectory, runner: CountingRunner, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(5):
        assert await directory.verify("alice", "secret")
    assert runner.runs == 1
    assert not await directory.verify("alice", "wrong")
    assert runner.runs == 2
    await trio.sleep(REMEMBER_S)
    assert await directory.verify("alice", "secret")
    assert runner.runs == 3


async def test_concurrent_logins_share_a_hash_check(directory: UserDirectory, runner: CountingRunner) -> None:
    async def login() -> None:
        assert await directory.verify("alice", "secret")

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(login)
    assert runner.runs <= 2


async def test_unknown_user_costs_a_hash_check_too(
    directory: UserDirectory, runner: CountingRunner, autojump_clock: trio.testing.MockClock
) -> None:
    for user, password in (("alice", "x"), ("nobody", "x"), ("broken", "x"), ("alice", "x" * 2000)):
        before = runner.runs
        assert not await directory.verify(user, password)
        assert runner.runs == before + 1


async def test_changed_file_counts_at_once(
    directory: UserDirectory, path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    assert await directory.verify("alice", "secret")
    set_password(path, "alice", "new", scheme="PLAIN")
    assert not await directory.verify("alice", "secret")
    assert await directory.verify("alice", "new")
    delete_user(path, "alice")
    for _ in range(2):
        with pytest.raises(UsersUnavailableError, match="has just changed"):
            await directory.verify("alice", "new")
    assert not await directory.verify("carol", "new")
    await trio.sleep(LEAVING_S)
    assert not directory.find("alice")
    assert not await directory.verify("alice", "new")


async def test_incomplete_file_does_not_replace_the_last_users(directory: UserDirectory, path: Path) -> None:
    alice, bob = await directory.verify("alice", "secret"), await directory.verify("bob", "other")
    assert alice
    assert bob
    for size in INCOMPLETE_SIZES:
        write_file(path, FILE[:size])
        assert [directory.find(name) for name in ("alice", "bob", "broken", "ali")] == ["alice", "bob", "broken", None]
        assert directory.holds(alice)
        assert directory.holds(bob)
        [problem] = directory.unreadable()
        assert "cannot be read, so the node keeps the last users that it could read: it" in problem
        assert problem.endswith(
            "it is used once it has a line" if size == 0 else "it is used once the line end is there"
        )
    write_file(path, FILE)
    assert directory.unreadable() == []


async def test_incomplete_file_at_the_start_is_not_used(path: Path) -> None:
    for size in INCOMPLETE_SIZES:
        write_file(path, FILE[:size])
        with pytest.raises(UsersUnavailableError, match="cannot be read now"):
            UserDirectory(path).find("alice")


def test_table_of_the_cluster_that_has_not_come_is_said_to_come(tmp_path: Path) -> None:
    directory = UserDirectory(tmp_path / "users.passwd", is_from_cluster=True)
    directory.refresh()
    [problem] = directory.unreadable()
    assert problem.startswith("the cluster's table of users is not here yet, so the node accepts neither")
    write_file(tmp_path / "users.passwd", FILE)
    assert directory.find("alice") == "alice"
    (tmp_path / "users.passwd").unlink()
    directory.refresh()
    [problem] = directory.unreadable()
    assert "cannot be read, so the node keeps the last users that it could read" in problem


async def test_missing_user_counts_as_deleted_only_after_a_while(
    directory: UserDirectory, path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    write_file(path, "alice:{PLAIN}secret\nbob@x:{PLAIN}other\nbob:{PLAIN}his\n")
    bob = await directory.verify("bob@x", "other")
    assert bob
    write_file(path, "alice:{PLAIN}secret\nbob:{PLAIN}his\n")
    assert directory.find("alice") == "alice"
    assert directory.find("carol") is None
    with pytest.raises(UsersUnavailableError, match="has just changed; try again in 10 seconds"):
        directory.find("Bob@X")  # the other bob must not get this mail
    assert directory.find("bob@y") == "bob"
    assert directory.holds(bob)
    write_file(path, "bob:{PLAIN}his\n")
    await trio.sleep(LEAVING_S / 2)
    write_file(path, "alice:{PLAIN}secret\nbob:{PLAIN}his\n")
    assert directory.find("alice") == "alice"
    with pytest.raises(UsersUnavailableError):
        directory.find("bob@x")
    await trio.sleep(LEAVING_S / 2)
    assert directory.find("bob@x") == "bob"
    assert not directory.holds(bob)


async def test_changed_password_in_a_shorter_file_counts_at_once(directory: UserDirectory, path: Path) -> None:
    alice = await directory.verify("alice", "secret")
    assert alice
    write_file(path, "alice:{PLAIN}new\n")
    assert not directory.holds(alice)


async def test_change_of_the_file_in_place_is_noticed(directory: UserDirectory, path: Path) -> None:
    assert directory.users() == ["alice", "bob", "broken"]
    write_file(path, FILE.replace("alice", "alicf"))
    os.utime(path, ns=(0, 0))
    assert directory.users() == ["alicf", "bob", "broken"]


async def test_password_changed_during_its_check_is_not_remembered(path: Path) -> None:
    async def change_and_run(work: Callable[[], T]) -> T:
        set_password(path, "alice", "new", scheme="PLAIN")
        watching.find("alice")
        return work()

    watching = UserDirectory(path, run_in_thread=change_and_run)
    assert await watching.verify("alice", "secret")
    assert not await watching.verify("alice", "secret")


def test_users_stay_while_the_file_cannot_be_read(directory: UserDirectory, path: Path) -> None:
    assert directory.find("alice")
    away = path.rename(path.with_name("away"))
    assert directory.find("alice")
    assert (
        "users.passwd: cannot be read, so the node keeps the last users that it could read" in directory.problems()[0]
    )
    away.rename(path)
    assert len(directory.problems()) == 1
    path.unlink()
    path.mkdir()
    assert directory.find("alice")
    assert "Is a directory" in directory.problems()[0]


async def test_failures_of_a_user_delay_the_next_attempt(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    waits = []
    for _ in range(9):
        before = trio.current_time()
        assert not await directory.verify("alice", "wrong")
        waits.append(trio.current_time() - before)
    assert waits[:4] == [0, 0, 0, 0]
    assert waits[4:7] == sorted(waits[4:7])
    assert waits[4] > 0
    assert max(waits) <= 8
    before = trio.current_time()
    assert await directory.verify("bob", "other")
    assert trio.current_time() == before
    await trio.sleep(8)
    before = trio.current_time()
    assert await directory.verify("alice", "secret")
    for _ in range(4):
        assert not await directory.verify("alice", "wrong")
    assert trio.current_time() == before


def test_file_that_returns_unchanged_is_no_longer_a_problem(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "p").write_text("alice:{PLAIN}a\n")
    directory = UserDirectory(home / "p")
    assert directory.problems() == []
    away = home.rename(tmp_path / "away")
    assert len(directory.problems()) == 1
    away.rename(home)
    assert directory.problems() == []


def test_unknown_user_is_checked_with_the_most_common_scheme(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("a:{PLAIN}a\nb:{SSHA256}x\n")
    set_password(path, "b", "b", scheme="SHA512-CRYPT")
    add_user(path, "c", "c", scheme="SHA512-CRYPT")
    directory = UserDirectory(path)
    assert directory.users() == ["a", "b", "c"]
    assert directory._file.decoys.hash_to_check().scheme == "SHA512-CRYPT"


async def test_lookups_fail_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "none"
    directory = UserDirectory(path)
    assert directory.users() == []
    assert directory.unreadable() == directory.problems()
    assert "`replicator user add` creates it: No such file" in directory.problems()[0]
    for _ in range(2):
        with pytest.raises(UsersUnavailableError, match="cannot be read now"):
            directory.find("alice")
        with pytest.raises(UsersUnavailableError):
            await directory.verify("alice", "secret")
    path.mkdir()
    with pytest.raises(UsersUnavailableError):
        directory.find("alice")
    path.rmdir()
    path.touch()
    with pytest.raises(UsersUnavailableError):
        directory.find("alice")
    path.write_text("# nobody yet\n")
    assert directory.find("alice") is None
    path.unlink()
    assert directory.find("alice") is None


def test_invalid_line_does_not_make_the_file_unreadable(directory: UserDirectory) -> None:
    assert len(directory.problems()) == 1
    assert directory.unreadable() == []


async def test_login_names_are_resolved_like_addresses(directory: UserDirectory, path: Path) -> None:
    for name in ("alice", "ALICE", "Alice@Example.org", "alice+x@example.org", "alice+x"):
        login = await directory.verify(name, "secret")
        assert login is not None
        assert login.user == directory.find(name) == "alice"
    add_user(path, "alice@example.org", "hers", scheme="PLAIN")
    assert await directory.verify("Alice@Example.org", "secret") is None
    login = await directory.verify("Alice@Example.org", "hers")
    assert login is not None
    assert login.user == "alice@example.org"


async def test_different_names_of_one_user_share_the_delay(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    for number in range(6):
        assert not await directory.verify(f"alice+{number}@x{number}", "wrong")
    before = trio.current_time()
    await directory.verify("alice", "wrong")
    assert trio.current_time() > before


async def test_login_holds_until_user_or_password_changes(directory: UserDirectory, path: Path) -> None:
    alice, bob = await directory.verify("alice", "secret"), await directory.verify("bob", "other")
    assert alice
    assert bob
    add_user(path, "carol", "x", scheme="PLAIN")
    await trio.Path(path).touch()
    assert directory.holds(alice)
    assert directory.holds(bob)
    set_password(path, "alice", "secret", scheme="PLAIN")
    assert not directory.holds(alice)
    assert directory.holds(bob)
    delete_user(path, "bob")
    assert not directory.holds(bob)
    await trio.Path(path).unlink()
    assert not directory.holds(bob)
    again = await directory.verify("alice", "secret")
    assert again
    assert directory.holds(again)


async def test_identity_logs_its_own_user_in(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    directory = UserDirectory(path, clock_ms=lambda: 1000)
    alice = Identity("Alice@example.org", 2000)
    assert await directory.admit("alice+x", alice) == Login("alice", until_ms=2000, name="alice")
    assert await directory.admit("bob", alice) is None
    assert await directory.admit("carol", Identity("carol", 2000)) is None
    assert await directory.admit("alice", None) is None


async def test_failed_identities_delay_the_next_attempt(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(4):
        assert await directory.admit("alice", Identity("bob", 2000), address="192.0.2.1") is None
    before = trio.current_time()
    assert await directory.verify("alice", "secret", address="192.0.2.1")
    assert trio.current_time() - before == FIRST_DELAY_S


async def test_login_by_an_identity_holds_until_it_ends_or_the_user_has_gone(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    now_ms = 1000
    directory = UserDirectory(path, clock_ms=lambda: now_ms)
    alice, bob = Login("alice", until_ms=2000), Login("bob", until_ms=2000)
    assert directory.holds(alice)
    write_file(path, "alice:{PLAIN}new\nbroken:{X}y\n")  # in place: bob may come back
    assert directory.holds(alice)
    assert directory.holds(bob)
    await trio.sleep(LEAVING_S)
    assert not directory.holds(bob)
    whole = path.with_suffix(".new")
    write_file(whole, "bob:*\n")
    whole.replace(path)
    assert not directory.holds(alice)
    assert directory.holds(bob)
    now_ms = 2000
    assert not directory.holds(bob)
