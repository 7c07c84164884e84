"""Recipients whom a program of the operator's knows, by real HTTP: names, aliases, and the doors that ask for them."""

# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.errors import UserNotLearnedError, UsersUnavailableError
from replicator.lmtp import LmtpServer, LmtpServices
from replicator.socketmap import SocketmapServer, SocketmapServices
from replicator.socketmap.netstrings import netstring
from replicator.user_sources import users_of_server
from replicator.users import ExternalDirectory, Found, Recipients, Verdict
from replicator.users.aliases.recipients import LEARNING_S
from replicator.users.elsewhere.answers import ANSWERS_MAX, Answers
from tests.one_node import one_node
from tests.user_sources.endpoint import Endpoint, config_of, serving

ALIASES = """\
info@example.org  alice, bob@example.org
team@example.org  info@example.org, alice, gone
boss@example.net  bob
@example.net      alice
"""


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with serving() as server:
        yield server


@pytest.fixture
def users(server: Endpoint) -> ExternalDirectory:
    return users_of_server(config_of(server), lambda: 1_000, CollectorRegistry())


@pytest.fixture
async def recipients(users: ExternalDirectory, tmp_path: Path) -> Recipients:
    file = tmp_path / "aliases"
    await trio.Path(file).write_text(ALIASES)
    return Recipients(users, file)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("alice@example.org", ("alice",)),
        ("nobody@example.org", ()),
        ("info@example.org", ("alice", "bob")),
        ("team+x@example.org", ("alice", "bob")),
        ("boss@example.net", ("bob",)),
        ("bob@example.net", ("bob",)),  # users come before the catch-all address
        ("anybody@example.net", ("alice",)),
    ],
)
async def test_users_of_an_address_are_learned(
    server: Endpoint, recipients: Recipients, address: str, found: tuple[str, ...]
) -> None:
    with pytest.raises(UserNotLearnedError):
        recipients.find(address)
    assert await recipients.ask(address) == found
    asked = [question["user"] for question in server.questions]
    await recipients.ask(address)
    assert len(server.questions) == len(asked), "the answers are good for a while"


async def test_address_is_no_missing_one_while_a_target_is_unknown(server: Endpoint, recipients: Recipients) -> None:
    await recipients.ask("alice")
    server.says = 500, b""
    with pytest.raises(UsersUnavailableError):
        await recipients.ask("info@example.org")
    assert recipients.find("alice") == ("alice",)


async def test_targets_are_told_of_once_they_are_known_to_lead_nowhere(recipients: Recipients) -> None:
    assert recipients.problems() == []
    await recipients.ask("team@example.org")
    [problem] = recipients.problems()
    assert "aliases:2: gone is no user here" in problem


class _Slow:
    """Users of whom little can be learned in any time."""

    async def ask(self, name: str) -> str | None:
        await trio.sleep(2 * LEARNING_S)
        return name

    def find(self, name: str) -> str | None:
        raise UserNotLearnedError(name)


async def test_learning_has_an_end(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(UsersUnavailableError):
        await Recipients(_Slow()).ask("alice")
    assert trio.current_time() == LEARNING_S


def test_answers_are_bounded() -> None:
    answers = Answers(60, 10)
    answers.note("first", Found("first", "1"), 0)
    for number in range(ANSWERS_MAX):
        answers.note(f"x{number}", None, 0)
    assert answers.known("first", 0) is None
    assert len(answers) == ANSWERS_MAX


async def answers_of(stream: trio.abc.Stream, data: bytes, count: int, end: bytes) -> list[str]:
    await stream.send_all(data)
    received = b""
    while received.count(end) < count:
        received += await stream.receive_some()
    return received.decode().split(end.decode())[:-1]


@pytest.fixture
async def lmtp(recipients: Recipients, tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[trio.abc.Stream]:
    async with one_node(tmp_path) as mail:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(LmtpServer(LmtpServices(mail, recipients, "dc1.mail")).serve, far)
        await answers_of(near, b"LHLO x\r\nMAIL FROM:<>\r\n", 8, b"\r\n")
        yield near
        nursery.cancel_scope.cancel()


async def rcpt(stream: trio.abc.Stream, *addresses: str) -> list[str]:
    """Return the codes of the answers to these recipients, who are sent at a time."""
    data = "".join(f"RCPT TO:<{address}>\r\n" for address in addresses).encode()
    return [answer[:9] for answer in await answers_of(stream, data, len(addresses), b"\r\n")]


async def test_lmtp_waits_for_the_server_and_then_answers(server: Endpoint, lmtp: trio.abc.Stream) -> None:
    addresses = ("info@example.org", "nobody@example.org", "anybody@example.net")
    assert await rcpt(lmtp, *addresses) == ["250 2.1.5", "550 5.1.1", "250 2.1.5"]
    server.says = 500, b""
    assert await rcpt(lmtp, "carol@example.org", "info@example.org") == ["451 4.3.0", "250 2.1.5"]


async def test_socketmap_waits_for_the_server_and_then_answers(
    server: Endpoint, recipients: Recipients, nursery: trio.Nursery
) -> None:
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(SocketmapServer(SocketmapServices(recipients)).serve, far, "192.0.2.1")

    async def ask(address: str) -> str:
        [answer] = await answers_of(near, netstring(f"recipient {address}"), 1, b",")
        return answer.partition(":")[2]

    assert await ask("info@example.org") == "OK info@example.org"
    assert await ask("anybody@example.net") == "OK anybody@example.net"
    assert await ask("nobody@example.org") == "NOTFOUND "
    server.says = 500, b""
    assert (await ask("carol@example.org")).startswith("TEMP the server that knows the users does not answer")
    assert await ask("info@example.org") == "OK info@example.org"
    nursery.cancel_scope.cancel()


class _Distant:
    """Users whose server takes 0.1 s, and whose answers are good for a second."""

    def __init__(self) -> None:
        self._users = ExternalDirectory(self, found_s=1, missing_s=1)
        self.ask = self._users.ask
        self.find = self._users.find

    name = "source"

    async def look_up(self, name: str) -> Found | None:
        await trio.sleep(0.1)
        return None if "@" in name else Found(name, name)

    async def check(self, found: Found | None, password: str, address: str | None) -> Verdict:  # noqa: ARG002
        raise AssertionError

    async def rehearse(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Do nothing."""


async def test_users_of_a_large_alias_are_all_learned(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    names = [f"u{number}" for number in range(900)]
    file = tmp_path / "aliases"
    targets = ", ".join(f"{name}@example.org" for name in names)
    await trio.Path(file).write_text(f"all@example.org {targets}\n")
    assert await Recipients(_Distant(), file).ask("all@example.org") == tuple(names)
