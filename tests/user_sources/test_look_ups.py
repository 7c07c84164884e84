"""Times at which a source is asked, and for which its answers are good, in virtual time."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.errors import UserNotLearnedError, UsersUnavailableError
from replicator.runtime.metrics import UserSourceMetrics
from replicator.users import EntryError, ExternalDirectory, Found, Login, SourceError, Verdict, add_user
from replicator.users.attempts.throttle import FREE_FAILURES_PAIR
from replicator.users.elsewhere.answers import AFTER_FAILURE_S, KNOWN_S
from replicator.users.elsewhere.look_ups import BUSY, REQUESTS_AT_ONCE, ROOM_S, TRY_AGAIN_S
from tests.one_node import run_inline

FOUND_S, MISSING_S = 60.0, 10.0


class Source:
    """A source that knows `people`, whose password is `secret`, and `bob`, about whom it talks nonsense."""

    name = "source"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_down = False
        self.fails_at: str | None = None
        self.people = {"alice"}
        self.disabled = False
        self.takes_s = 0.0
        self.check_takes_s = 0.0

    async def look_up(self, name: str) -> Found | None:
        self.asked.append(name)
        await self._answer("look_up")
        if name == "bob":
            raise EntryError("bob makes no sense")
        return Found(name, f"entry of {name}", self.disabled) if name in self.people else None

    async def check(self, found: Found | None, password: str, address: str | None) -> Verdict:  # noqa: ARG002
        await self._answer("check")
        await trio.sleep(self.check_takes_s)
        return Verdict(found is not None and password == "secret", "checked")

    async def rehearse(self) -> None:
        await self._answer("look_up")
        await self._answer("check")

    async def _answer(self, request: str) -> None:
        await trio.sleep(self.takes_s)
        if self.is_down or self.fails_at == request:
            raise SourceError("the source is down")

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def users(source: Source) -> ExternalDirectory:
    return ExternalDirectory(source, found_s=FOUND_S, missing_s=MISSING_S)


async def test_answers_are_good_for_a_bounded_time(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    for name, good_s in (("alice", FOUND_S), ("nobody", MISSING_S)):
        await users.ask(name)
        source.asked.clear()
        await trio.sleep(good_s - 0.1)
        await users.ask(name)
        users.find(name)
        assert source.asked == []
        await trio.sleep(0.2)
        with pytest.raises(UserNotLearnedError):
            users.find(name)
        await users.ask(name)
        assert source.asked == [name]


async def test_answers_about_the_parts_of_a_name_may_take_longer_than_they_are_good(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    source.takes_s = MISSING_S - 1
    assert await users.ask("alice+x@example.org") == "alice"
    assert source.asked == ["alice+x@example.org", "alice@example.org", "alice+x", "alice"]


@pytest.mark.parametrize("name", ["alice", "alice+x@example.org"])
async def test_use_of_an_answer_does_not_prolong_it(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, name: str
) -> None:
    async def seconds_until(wanted: Login | None) -> float:
        """Log in again and again; return when the outcome was first this one."""
        began = trio.current_time()
        with trio.fail_after(200):
            while await users.verify(name, "secret", address="192.0.2.1") != wanted:
                users.forgive(None)
                await trio.sleep(0.5)
        return trio.current_time() - began

    login = await users.verify(name, "secret", address="192.0.2.1")
    assert login is not None
    source.disabled = True
    assert await seconds_until(None) <= FOUND_S + 2
    assert not users.holds(login)
    source.disabled = False
    assert await seconds_until(login) <= FOUND_S + 2


async def test_use_does_not_prolong_a_failure_or_that_nobody_has_a_name(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    async def outcome() -> str:
        try:
            return "right" if await users.verify("alice", "secret") else "wrong"
        except UsersUnavailableError:
            return "failed"

    source.is_down = True
    for _ in range(5):
        assert await outcome() == "failed"
        await trio.sleep(AFTER_FAILURE_S / 2)
    source.is_down, source.people = False, set()
    await trio.sleep(AFTER_FAILURE_S)
    assert await outcome() == "wrong"
    source.people, began = {"alice"}, trio.current_time()
    with trio.fail_after(200):
        while await outcome() == "wrong":
            users.forgive(None)
            await trio.sleep(0.1)
    assert trio.current_time() - began <= MISSING_S + 1


async def test_known_user_is_one_for_a_while_although_the_source_is_down(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    assert await users.ask("alice@example.org") == "alice"
    assert await users.ask("nobody") is None
    source.is_down = True
    await trio.sleep(FOUND_S)
    for name in ("alice@example.org", "alice"):
        assert await users.ask(name) == users.find(name) == "alice"
    with pytest.raises(UsersUnavailableError):  # somebody may have got that name meanwhile
        await users.ask("nobody")
    await trio.sleep(KNOWN_S - FOUND_S)
    with pytest.raises(UsersUnavailableError):
        await users.ask("alice")


async def test_several_who_ask_share_one_request(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    source.takes_s = 1
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(users.ask, "alice")
    assert source.asked == ["alice"]


async def test_source_is_tried_at_the_start_and_again_while_it_is_down(
    source: Source,
    users: ExternalDirectory,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    source.is_down = True
    nursery.start_soon(users.run)
    await trio.sleep(3 * TRY_AGAIN_S)
    assert users.unreadable() == ["the source is down"]
    source.is_down = False
    await trio.sleep(TRY_AGAIN_S)
    assert users.unreadable() == []
    told = [record.getMessage() for record in caplog.records]
    assert told == ["users are not known now: the source is down", "source answers again"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("broken", ["look_up", "check"])
async def test_answer_to_another_brokendoes_not_make_a_source_well(
    source: Source,
    users: ExternalDirectory,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    broken: str,
) -> None:
    """A server may search and not check passwords, or the other way round."""
    assert await users.ask("alice") == "alice"
    nursery.start_soon(users.run)
    await trio.sleep(FOUND_S)
    source.fails_at = broken
    for _ in range(2):
        with suppress(UsersUnavailableError):
            await users.verify("alice", "secret")
        with suppress(UsersUnavailableError):
            await users.ask("nobody" if broken == "check" else "alice")
        with suppress(UsersUnavailableError):
            await users.verify("alice", "wrong")
        for _ in range(3):
            assert users.unreadable() == ["the source is down"]
            await trio.sleep(TRY_AGAIN_S)
    source.fails_at = None
    await trio.sleep(TRY_AGAIN_S)
    assert not users.unreadable()
    nursery.cancel_scope.cancel()


async def test_open_session_goes_on_while_the_source_is_down(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(users.run)
    login = await users.verify("alice", "secret")
    assert login == Login("alice")
    source.is_down = True
    for _ in range(3):
        await trio.sleep(FOUND_S)
        assert users.holds(login)
    with pytest.raises(UsersUnavailableError):
        await users.verify("alice", "secret")
    source.is_down = False
    await trio.sleep(AFTER_FAILURE_S)
    assert await users.verify("alice", "secret")
    nursery.cancel_scope.cancel()


async def test_nonsense_about_one_user_is_logged_once(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with pytest.raises(UsersUnavailableError):
            await users.ask("bob")
        await trio.sleep(AFTER_FAILURE_S)
    assert source.asked == ["bob"] * 3
    assert users.unreadable() == []
    assert [record.getMessage() for record in caplog.records] == ["one user is not known now: bob makes no sense"]


async def test_failures_count_for_the_master(
    source: Source, autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    add_user(tmp_path / "masters", "admin", "mighty", scheme="PLAIN")
    users = ExternalDirectory(
        source,
        found_s=FOUND_S,
        missing_s=MISSING_S,
        run_in_thread=run_inline,
        masters=tmp_path / "masters",
        separator="*",
    )
    for _ in range(FREE_FAILURES_PAIR + 1):
        assert await users.verify("alice*admin", "wrong", address="192.0.2.1") is None
    [penalty] = users.penalties()
    assert penalty.user == "*admin"
    assert users.forgive("*admin") == 1


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "secret"), ("alice", "")])
async def test_failure_takes_whole_seconds(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, name: str, password: str
) -> None:
    source.takes_s = 0.3
    began = trio.current_time()
    assert await users.verify(name, password) is None
    assert trio.current_time() - began == pytest.approx(1)


async def test_own_queue_is_no_failure_of_the_source(
    source: Source, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each question is answered within three seconds, and there are too many for some of them to be asked in time."""
    registry = CollectorRegistry()
    users = ExternalDirectory(source, found_s=FOUND_S, missing_s=MISSING_S, metrics=UserSourceMetrics(registry))
    source.takes_s = 3
    outcomes = Counter[str]()

    async def ask(number: int) -> None:
        try:
            await users.ask(f"u{number}")
        except UsersUnavailableError as error:
            outcomes[str(error)] += 1
        else:
            outcomes["missing"] += 1

    in_time = REQUESTS_AT_ONCE * int(ROOM_S / source.takes_s + 1)
    async with trio.open_nursery() as nursery:
        for number in range(in_time + 50):
            nursery.start_soon(ask, number)
    assert outcomes == {"missing": in_time, BUSY: 50}
    assert users.unreadable() == []
    assert not caplog.records
    counted = {"request": "look_up", "result": "busy"}
    assert registry.get_sample_value("replicator_user_source_seconds_count", counted) == 50
    assert registry.get_sample_value("replicator_user_source_up") == 1
    assert await users.ask(f"u{in_time + 50}") is None


async def test_wrong_passwords_leave_places_to_mail(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Each is checked for as long as a Dovecot delays failures, at twice as many users as are asked about at once."""
    names = [f"u{number}" for number in range(2 * REQUESTS_AT_ONCE)]
    source.people, source.check_takes_s = set(names), 2
    for number, name in enumerate(names):
        nursery.start_soon(partial(users.verify, name, "wrong", address=f"10.0.{number}.1"))
    await trio.sleep(1)
    began = trio.current_time()
    assert await users.ask("nobody") is None
    assert trio.current_time() == began
    nursery.cancel_scope.cancel()


async def test_sessions_of_removed_users_end_soon_however_many_there_are(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Each session looks every 15 s, and the source takes 0.1 s to answer: one after the other would take 200 s."""
    names = [f"u{number}" for number in range(2000)]
    source.people = set(names)
    nursery.start_soon(users.run)
    for name in names:
        assert await users.ask(name) == name
    source.takes_s = 0.1
    source.people -= set(names[::10])
    began = trio.current_time()
    sessions = {name: Login(name) for name in names}
    while source.people != set(sessions):
        assert trio.current_time() - began <= FOUND_S + 4 * 15
        await trio.sleep(15)
        sessions = {name: login for name, login in sessions.items() if users.holds(login)}
    nursery.cancel_scope.cancel()


async def test_source_that_is_down_is_asked_about_one_part_of_a_known_name(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock
) -> None:
    """It may take its whole time to fail, and a client waits."""
    name = "alice+x@example.org"
    assert await users.ask(name) == "alice"
    source.is_down, source.takes_s = True, 5
    await trio.sleep(FOUND_S)
    source.asked.clear()
    assert await users.ask(name) == "alice"
    assert source.asked == [name]
    assert users.find(name) == "alice"


async def test_user_who_may_log_in_again_keeps_the_session_from_the_first_time_on(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """The process of a door does not hear of log-ins, and may have an answer from before."""
    nursery.start_soon(users.run)
    source.disabled = True
    assert await users.ask("alice") == "alice"
    assert not users.holds(Login("alice"))
    source.disabled = False
    await trio.sleep(2 * FOUND_S)
    users.let_in(Login("alice"))
    for _ in range(10):
        assert users.holds(Login("alice"))
        await trio.sleep(2 * FOUND_S)
    nursery.cancel_scope.cancel()


async def test_session_that_looks_seldom_ends_too(
    source: Source, users: ExternalDirectory, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(users.run)
    login = await users.verify("alice", "secret")
    assert login is not None
    source.people.clear()
    await trio.sleep(2 * KNOWN_S)
    assert users.holds(login), "it is not asked before it answers"
    await trio.sleep(2 * KNOWN_S)
    assert not users.holds(login)
    nursery.cancel_scope.cancel()
