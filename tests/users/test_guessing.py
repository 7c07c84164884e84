# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
"""Guessing in parallel and by turns, and what it costs the users who know their passwords. All in virtual time."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from replicator.errors import UnavailableError
from replicator.users import UserDirectory
from replicator.users.attempts.queue import PATIENCE_S
from replicator.users.attempts.throttle import (
    DELAY_MAX_S,
    FREE_FAILURES_ADDRESS,
    FREE_FAILURES_PAIR,
    FREE_FAILURES_SHARED_ADDRESS,
    FREE_FAILURES_USER,
)
from replicator.users.attempts.turns import Turns

T = TypeVar("T")

HASH_S = 0.02
OFFICE = "192.0.2.1"  # several people behind one address
ELSEWHERE = "192.0.2.2"
USERS = ("alice", "bob", "carol", "dave")


class SlowRunner:
    """Takes as long for a hash as a core does, in virtual time."""

    def __init__(self) -> None:
        self.runs = 0
        self.now = 0
        self.most = 0

    async def __call__(self, work: Callable[[], T]) -> T:
        self.runs += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await trio.sleep(HASH_S)
        self.now -= 1
        return work()


@pytest.fixture
def runner() -> SlowRunner:
    return SlowRunner()


@pytest.fixture
def directory(tmp_path: Path, runner: SlowRunner) -> UserDirectory:
    file = tmp_path / "users.passwd"
    file.write_text("".join(f"{user}:{{PLAIN}}{user}\n" for user in USERS))
    return UserDirectory(file, run_in_thread=runner)


async def guess(directory: UserDirectory, user: str, address: str) -> None:
    with suppress(UnavailableError):
        assert not await directory.verify(user, "wrong", address=address)


async def seconds_to_log_in(directory: UserDirectory, user: str, address: str) -> float:
    began = trio.current_time()
    assert await directory.verify(user, user, address=address)
    return trio.current_time() - began


async def test_guesses_at_one_user_delay_nobody_else_at_the_address(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    waits: dict[str, float] = {}

    async def log_in(user: str) -> None:
        waits[user] = await seconds_to_log_in(directory, user, OFFICE)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(guess, directory, "alice", OFFICE)
        await trio.sleep(1)
        for user in USERS[1:]:
            nursery.start_soon(log_in, user)
    assert max(waits.values()) < 5 * HASH_S, waits
    assert waits.keys() == set(USERS[1:])


async def test_guessed_user_logs_in_elsewhere_without_delay(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    async def keep_guessing() -> None:
        while True:
            await guess(directory, "alice", OFFICE)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(keep_guessing)
        await trio.sleep(600)
        assert await seconds_to_log_in(directory, "alice", ELSEWHERE) < 3 * HASH_S
        nursery.cancel_scope.cancel()


async def test_parallel_guesses_from_one_address_at_one_user_are_as_slow_as_single_ones(
    directory: UserDirectory, runner: SlowRunner, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(guess, directory, "alice", OFFICE)
    assert runner.runs <= FREE_FAILURES_PAIR + 8  # the delays of 30 s; then all others had to try again
    assert trio.current_time() - began == PATIENCE_S


async def test_guesses_at_many_users_from_a_new_address_are_delayed(
    directory: UserDirectory, runner: SlowRunner, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(500):
            nursery.start_soon(guess, directory, f"user{number}", OFFICE)
        await trio.sleep(5)
        assert await seconds_to_log_in(directory, "alice", ELSEWHERE) < 3 * HASH_S
    assert runner.runs <= FREE_FAILURES_ADDRESS + 8 + 1  # and alice's
    began = trio.current_time()
    assert await directory.verify("bob", "bob", address=OFFICE)
    assert trio.current_time() - began > 1


async def test_guesses_at_many_users_do_not_delay_those_who_have_logged_in_there(
    directory: UserDirectory, runner: SlowRunner, autojump_clock: trio.testing.MockClock
) -> None:
    await seconds_to_log_in(directory, "bob", OFFICE)
    await trio.sleep(3600)
    before = runner.runs
    async with trio.open_nursery() as nursery:
        for number in range(500):
            nursery.start_soon(guess, directory, f"user{number}", OFFICE)
        await trio.sleep(20)
        assert await seconds_to_log_in(directory, "bob", OFFICE) < 3 * HASH_S
    assert runner.runs - before <= FREE_FAILURES_SHARED_ADDRESS + 8


async def test_a_few_failures_at_a_shared_address_delay_no_newcomer(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    await seconds_to_log_in(directory, "bob", OFFICE)
    for number in range(30):
        await guess(directory, f"user{number}", OFFICE)
    assert await seconds_to_log_in(directory, "alice", OFFICE) < 3 * HASH_S


async def test_guesses_at_one_user_from_many_addresses_are_delayed(
    directory: UserDirectory, runner: SlowRunner, autojump_clock: trio.testing.MockClock
) -> None:
    await seconds_to_log_in(directory, "alice", OFFICE)
    await trio.sleep(3600)
    before = runner.runs
    async with trio.open_nursery() as nursery:
        for number in range(500):
            nursery.start_soon(guess, directory, "alice", f"2001:db8:{number:x}::1")
        await trio.sleep(20)
        assert await seconds_to_log_in(directory, "alice", OFFICE) < 3 * HASH_S  # where she has logged in before
    assert runner.runs - before <= FREE_FAILURES_USER + 10


async def test_one_address_leaves_a_place_for_hashing_to_others(
    directory: UserDirectory, runner: SlowRunner, autojump_clock: trio.testing.MockClock
) -> None:
    await seconds_to_log_in(directory, "bob", OFFICE)
    runner.most = 0
    async with trio.open_nursery() as nursery:
        for number in range(FREE_FAILURES_SHARED_ADDRESS):
            nursery.start_soon(guess, directory, f"user{number}", OFFICE)
        await trio.testing.wait_all_tasks_blocked()
        assert await seconds_to_log_in(directory, "alice", ELSEWHERE) <= HASH_S
    assert runner.most == 2


async def test_addresses_take_turns_at_hashing(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(guess, directory, f"user{number}", f"2001:db8:{number % 10:x}::1")
        await trio.testing.wait_all_tasks_blocked()
        assert await seconds_to_log_in(directory, "alice", OFFICE) <= 10 * HASH_S


async def test_right_passwords_in_parallel_wait_for_one_check_only(
    directory: UserDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(FREE_FAILURES_PAIR + 2):
        await guess(directory, "alice", OFFICE)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(seconds_to_log_in, directory, "alice", OFFICE)
    assert trio.current_time() - began <= DELAY_MAX_S


def test_unused_turns_take_no_memory() -> None:
    turns: Turns[str] = Turns()
    semaphore = turns.of("alice")
    assert turns.of("alice") is semaphore
    del semaphore
    assert not turns._semaphores
