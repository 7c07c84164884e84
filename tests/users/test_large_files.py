# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
"""A passwd-file of many users: what would hold up the event loop is read in a thread, and what is small at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from replicator.errors import UsersUnavailableError
from replicator.users import Login, UserDirectory
from replicator.users.followed_file import LEAVING_S
from replicator.users.passwd_file.table import FEW_LINES
from replicator.users.schemes import parse_hash

T = TypeVar("T")

MANY = [f"user{number}:{{PLAIN}}p" for number in range(FEW_LINES + 1)]


class HeldThreads:
    """Runs work once it may go on, and counts it."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_go_on = trio.Event()

    async def __call__(self, work: Callable[[], T]) -> T:
        self.begun += 1
        await self.may_go_on.wait()
        return work()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.passwd"


def write(path: Path, lines: list[str], end: str = "\n") -> None:
    """Replace the file, as a change of the cluster's users does."""
    whole = path.with_name("new")
    whole.write_text("\n".join(lines) + end)
    whole.rename(path)


@pytest.fixture
def threads() -> HeldThreads:
    return HeldThreads()


@pytest.fixture
async def users(path: Path, threads: HeldThreads) -> AsyncIterator[UserDirectory]:
    """Users who are read while requests arrive."""
    users = UserDirectory(path, run_in_thread=threads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(users.run)
        await trio.testing.wait_all_tasks_blocked()
        yield users
        nursery.cancel_scope.cancel()


async def test_many_users_who_appear_are_read_in_a_thread(
    path: Path, users: UserDirectory, threads: HeldThreads
) -> None:
    write(path, MANY)
    for _ in range(3):
        with pytest.raises(UsersUnavailableError):
            users.find("user1")
        await trio.testing.wait_all_tasks_blocked()
    assert threads.begun == 1
    threads.may_go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert users.find("user1") == "user1"
    assert users.summary()[0] == len(MANY)
    assert threads.begun == 1


async def test_few_changes_among_many_users_are_in_force_at_once(
    path: Path, users: UserDirectory, threads: HeldThreads
) -> None:
    threads.may_go_on.set()
    write(path, MANY)
    users.refresh()
    await trio.testing.wait_all_tasks_blocked()
    login = Login("user1", parse_hash("{PLAIN}p"))
    assert users.holds(login)
    write(path, [MANY[0], "user1:{PLAIN}other", *MANY[2:], "ann:*"])
    assert not users.holds(login)
    assert users.find("ann") == "ann"
    assert threads.begun == 1


async def test_what_holds_while_many_lines_are_read_and_what_ends_then(
    path: Path, users: UserDirectory, threads: HeldThreads, autojump_clock: trio.testing.MockClock
) -> None:
    threads.may_go_on.set()
    write(path, MANY)
    users.refresh()
    await trio.testing.wait_all_tasks_blocked()
    threads.may_go_on = trio.Event()
    stays, changes, goes = (Login(f"user{number}", parse_hash("{PLAIN}p")) for number in (0, 1, 2))
    write(path, [MANY[0], "user1:{PLAIN}other", *(f"{line}:cluster=x" for line in MANY[3:]), "ann:{MD5}x"])
    assert users.holds(stays)
    await trio.testing.wait_all_tasks_blocked()
    assert all(map(users.holds, (stays, changes, goes)))
    write(
        path, [MANY[0], "user1:{PLAIN}other", *(f"{line}:cluster=x" for line in MANY[3:]), "bob:*"]
    )  # while the one before is read
    assert users.find("bob") is None
    threads.may_go_on.set()
    await trio.sleep(LEAVING_S)
    assert [users.holds(login) for login in (stays, changes, goes)] == [True, False, False]
    assert users.find("bob") == "bob"
    assert users.problems() == []


async def test_a_file_that_cannot_be_used_is_not_read_again_until_it_changes(
    path: Path, users: UserDirectory, threads: HeldThreads
) -> None:
    write(path, MANY)
    assert users.users() == []
    write(path, ["half a line"], end="")
    threads.may_go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    [problem] = users.problems()
    assert "its last line is truncated" in problem
    write(path, MANY)
    assert users.users() == []
    await trio.testing.wait_all_tasks_blocked()
    assert len(users.users()) == len(MANY)
    assert threads.begun == 2


async def test_a_large_file_is_loaded_before_there_is_a_reader(path: Path, threads: HeldThreads) -> None:
    threads.may_go_on.set()
    write(path, MANY)
    users = UserDirectory(path, run_in_thread=threads)
    await users.load()
    assert (threads.begun, users.find("user1")) == (1, "user1")
    write(path, MANY[:-1])
    assert users.summary()[0] == len(MANY) - 1
    write(path, [*MANY, "ann:{MD5}x"])
    assert users.find("ann") == "ann"  # nothing else would read it
