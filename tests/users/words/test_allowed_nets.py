"""Users who may log in from some networks only, by the word `allow_nets` of their lines."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from replicator.users import ClientFirst, Identity, ScramExchange, UserDirectory, add_user, parse_nets, set_password
from replicator.users.attempts.throttle import FREE_FAILURES_PAIR
from replicator.users.words.allowed_nets import allowed_nets
from tests.one_node import run_inline
from tests.scram_client import ScramClient

T = TypeVar("T")

FAR_MS = 1 << 60
HERE, ELSEWHERE = "192.0.2.7", "198.51.100.7"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    path.write_text("alice:{PLAIN}a::::::allow_nets=192.0.2.0/24,2001:db8::/32\nbob:{PLAIN}b\n")
    return path


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", None),
        (":::::nologin xallow_nets=x", None),
        (":::::allow_nets=192.0.2.7", "192.0.2.7"),
        ("allow_nets=192.0.2.7:::::nologin", "192.0.2.7"),
        (":::::allow_nets=10.1.2.3/8,local quota_messages=1", "10.0.0.0/8,local"),
        (":::::nologin allow_nets=::1/128,2001:db8::/32,::ffff:192.0.2.0/120", "::1,2001:db8::/32,192.0.2.0/24"),
    ],
)
def test_the_word_names_networks(fields: str, expected: str | None) -> None:
    found = allowed_nets(fields)
    assert (found if found is None else str(found)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        ":::::allow_nets", ":::::allow_nets=", ":::::allow_nets=192.0.2.0/33", ":::::allow_nets=192.0.2.7,,local",
        ":::::allow_nets=example.org", ":::::allow_nets=192.0.2.7:nologin", ":::::allow_nets=local allow_nets=::1",
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_told_and_lets_nobody_in(tmp_path: Path, fields: str) -> None:
    file = tmp_path / "users.passwd"
    await trio.Path(file).write_text(f"# users\nalice:{{PLAIN}}a:{fields}\n")
    users = UserDirectory(file, run_in_thread=run_inline)
    [problem] = users.problems()
    assert problem.startswith(f"{file}:2: allow_nets: expected ")
    assert problem.endswith("until it is corrected, the user cannot log in")
    assert await users.verify("alice", "a", address="192.0.2.7") is None
    assert await users.verify("alice", "a") is None
    assert [reason.obstacle for reason in (await users.try_login("alice", "a")).reasons][-1] == "wrong_address"
    assert users.find("alice") == "alice"


@pytest.mark.parametrize(
    ("nets", "address", "expected"),
    [
        ("192.0.2.0/24", "192.0.2.255", True),
        ("192.0.2.0/24", "192.0.3.0", False),
        ("192.0.2.0/24", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.0/120", "192.0.2.1", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("2001:db8::/32", "2001:db8:ffff::1%eth0", True),
        ("192.0.2.0/24", None, False),
        ("192.0.2.0/24,local", None, True),
        ("local", "127.0.0.1", False),
    ],
)
def test_an_address_is_in_the_networks_or_not(nets: str, address: str | None, expected: bool) -> None:  # noqa: FBT001
    assert parse_nets(nets).has(address) is expected


async def test_every_kind_of_log_in_needs_a_right_address(file: Path, autojump_clock: trio.testing.MockClock) -> None:
    set_password(file, "alice", "a", scheme="SCRAM-SHA-256")
    users = UserDirectory(file, run_in_thread=run_inline)

    async def logins(address: str | None) -> list[bool]:
        client = ScramClient("alice", "a")
        exchange = ScramExchange(ClientFirst.parse(client.first().encode()), users.scram_keys("alice"), "nonce")
        attempt = exchange.attempt(client.last(exchange.challenge().decode()).encode())
        found = [
            await users.verify("alice", "a", address=address),
            await users.verify_scram("alice", attempt, address=address),
            await users.admit("alice", Identity("alice", FAR_MS), address=address),
        ]
        return [login is not None for login in found]

    assert await logins(HERE) == await logins("2001:db8::1") == [True] * 3
    assert await logins(ELSEWHERE) == await logins(None) == [False] * 3
    assert users.shuts_out("alice@example.org", ELSEWHERE) == (
        "the user may log in from 192.0.2.0/24,2001:db8::/32 only"
    )
    assert users.shuts_out("alice", HERE) is users.shuts_out("bob", ELSEWHERE) is users.shuts_out("x", None) is None


async def test_a_wrong_address_takes_as_long_and_counts_as_a_wrong_password_does(
    file: Path, autojump_clock: trio.testing.MockClock
) -> None:
    hashed = 0

    async def counted(work: Callable[[], T]) -> T:
        nonlocal hashed
        hashed += 1
        return await run_inline(work)

    users = UserDirectory(file, run_in_thread=counted)
    assert await users.verify("alice", "a", address=HERE)
    assert await users.verify("alice", "a", address=HERE)
    assert hashed == 1  # remembered
    assert await users.verify("alice", "a", address=ELSEWHERE) is None
    assert hashed == 2  # hashed again, although the right password is known
    for _ in range(FREE_FAILURES_PAIR):
        assert await users.verify("alice", "a", address=ELSEWHERE) is None
    [penalty] = users.penalties()
    assert (penalty.user, penalty.address, penalty.failures) == ("alice", ELSEWHERE, FREE_FAILURES_PAIR + 1)


async def test_sessions_end_when_their_address_is_excluded(file: Path) -> None:
    users = UserDirectory(file, run_in_thread=run_inline)
    near, far = await users.verify("bob", "b", address=HERE), await users.verify("bob", "b", address=ELSEWHERE)
    assert near
    assert far
    assert users.holds(near)
    assert users.holds(far)
    await trio.Path(file).write_text(f"bob:{{PLAIN}}b::::::allow_nets={HERE}\n")
    assert users.holds(near)
    assert not users.holds(far)
    await trio.Path(file).write_text("bob:{PLAIN}b\n")  # the line is patched, and the networks are gone
    assert users.holds(far)


async def test_a_trial_tells_of_the_address(file: Path) -> None:
    users = UserDirectory(file, run_in_thread=run_inline)
    anywhere = await users.try_login("alice", "a")
    assert (anywhere.reasons, anywhere.only_from) == ((), ("192.0.2.0/24", "2001:db8::/32"))
    assert (await users.try_login("alice", "a", HERE)).reasons == ()
    [reason] = (await users.try_login("alice", "a", ELSEWHERE)).reasons
    assert reason.obstacle == "wrong_address"
    assert reason.text == f"alice may log in from 192.0.2.0/24,2001:db8::/32 only, and not from {ELSEWHERE}"
    assert (await users.try_login("bob", "b", ELSEWHERE)).only_from is None


async def test_a_new_user_gets_the_word(tmp_path: Path) -> None:
    file = tmp_path / "new.passwd"
    add_user(file, "carol", "secret", nets=parse_nets("192.0.2.7,2001:db8::/32,local"))
    users = UserDirectory(file, run_in_thread=run_inline)
    assert users.problems() == []
    assert (await users.try_login("carol", "secret")).only_from == ("192.0.2.7", "2001:db8::/32", "local")
