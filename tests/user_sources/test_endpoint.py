"""Log-ins and look-ups at a program of the operator's, by real HTTP."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from prometheus_client import CollectorRegistry

from replicator.config import Config, EndpointConfig, config_text, default_config, load_config, user_server
from replicator.errors import ConfigError, UsersUnavailableError
from replicator.user_sources import server_faults, users_of_server
from replicator.users import ExternalDirectory, Login, QuotaLimits
from tests.user_sources.endpoint import Endpoint, config_of, serving


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with serving() as server:
        yield server


def directory_of(config: EndpointConfig) -> ExternalDirectory:
    return users_of_server(config, lambda: 1_000, CollectorRegistry(), quota=QuotaLimits(5, 5))


async def test_questions_and_answers(server: Endpoint, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    users = directory_of(replace(config_of(server), token_file=token))
    assert await users.verify("Alice@Example.org", "secret", address="192.0.2.1") == Login("alice", address="192.0.2.1")
    look_up, own_name, check = server.questions
    assert look_up == {"request": "look_up", "user": "alice@example.org"}
    assert own_name == {"request": "look_up", "user": "alice"}
    assert check == {
        "request": "check",
        "user": "alice",
        "password": "secret",
        "address": "192.0.2.1",
        "protocol": "imap",
    }
    assert set(server.tokens) == {"Bearer abc"}
    assert await users.quota_limits("alice") == QuotaLimits(1024**3, 5)
    assert await users.verify("alice", "wrong") is None
    assert await users.verify("bob", "hidden") is None
    assert users.shuts_out("bob", None) == f"the user is disabled at {config_of(server).url}"
    assert await users.verify("nobody", "secret") is None
    assert server.questions[-1]["request"] == "check", "the time must not tell who exists"
    trial = await users.try_login("alice", "x", "192.0.2.1")
    assert (trial.origin, trial.answer) == (f"{config_of(server).url}: alice", "the endpoint answers false")
    assert server.questions[-1]["address"] == "192.0.2.1"


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ((404, b"{}"), "status 404"),
        ((401, b"{}"), "status 401"),
        ((500, b"{}"), "status 500"),
        ((302, b""), "redirection"),
        ((200, b"[]"), "no JSON object"),
        ((200, b"{"), "no JSON object"),
        ((200, b"[" * 10_000), "no JSON object"),
        ((200, b"{}"), "`user` must be a name or null"),
        ((200, b'{"user": 1}'), "`user` must be a name or null"),
        ((200, b'{"user": "alice", "disabled": 1}'), "`disabled` true or false"),
        ((200, b'"' + b"x" * 20_000 + b'"'), "larger than 16384 bytes"),
    ],
)
async def test_other_answers_are_no_missing_user(server: Endpoint, says: tuple[int, bytes], problem: str) -> None:
    server.says = says
    users = directory_of(config_of(server))
    with pytest.raises(UsersUnavailableError):
        await users.ask("alice")
    assert problem in users.unreadable()[0]


async def test_quota_that_makes_no_sense_shuts_nobody_out(server: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    server.odd["alice"] = b'{"user": "alice", "quota": "lots"}'
    users = directory_of(config_of(server))
    assert await users.ask("alice") == "alice"
    assert await users.quota_limits("alice") == QuotaLimits(5, 5)
    assert "alice: expected a size" in caplog.text


async def test_nonsense_about_one_user_affects_no_other(server: Endpoint) -> None:
    server.odd["alice"] = b'{"user": "other"}'
    problem = "its user is 'other', but is not what is found by that name"
    users = directory_of(config_of(server))
    with pytest.raises(UsersUnavailableError):
        await users.ask("alice")
    with pytest.raises(UsersUnavailableError, match=problem):
        await users.try_login("alice", "secret")
    assert not users.unreadable()
    assert await users.ask("bob") == "bob"


async def test_query_of_the_url_is_sent_and_never_shown(server: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """It may have a secret in it."""
    users = directory_of(replace(config_of(server), url=f"{config_of(server).url}?key=geheim"))
    assert await users.ask("alice") == "alice"
    assert set(server.paths) == {"/users?key=geheim"}
    account = await users.account("alice")
    server.says = 500, b""
    with pytest.raises(UsersUnavailableError) as error:
        await users.try_login("alice", "secret")
    shown = (str(error.value), caplog.text, *users.unreadable(), str(account), str(users.shuts_out("bob", None)))
    assert "/users: the answer has the status 500" in users.unreadable()[0]
    assert "geheim" not in str(shown)


async def test_answer_about_a_password_must_be_true_or_false(server: Endpoint) -> None:
    users = directory_of(config_of(server))
    await users.ask("alice")
    for said in (b"{}", b'{"right": "yes"}', b'{"right": 1}'):
        server.says = 200, said
        with pytest.raises(UsersUnavailableError):
            await users.verify("alice", "secret")


async def test_password_is_remembered_for_its_address(server: Endpoint) -> None:
    users = directory_of(config_of(server))
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.1"):
        assert await users.verify("alice", "secret", address=address) == Login("alice", address=address)
    checked = [question["address"] for question in server.questions if question["request"] == "check"]
    assert checked == ["192.0.2.1", "192.0.2.2"]


@asynccontextmanager
async def answering(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[ExternalDirectory]:
    """Yield the users of an endpoint whose connections are served by a function, with a short timeout."""

    async def serve_until_gone(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await stream.receive_some(65536)
                await serve(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve_until_gone, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/users"
        yield directory_of(EndpointConfig(url, timeout_s=0.3))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("begins", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"])
async def test_endpoint_that_hangs_is_given_up(begins: bytes) -> None:
    async def hang(stream: trio.SocketStream) -> None:
        await stream.send_all(begins)
        await trio.sleep_forever()

    async with answering(hang) as users:
        with trio.fail_after(10), pytest.raises(UsersUnavailableError):
            await users.ask("alice@example.org")
        assert "answer within 0.3 s" in users.unreadable()[0]


ENDLESS = {
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5f5e100\r\n",
    "headers": b"HTTP/1.1 200 OK\r\nX: ",
}


@pytest.mark.parametrize("part", ENDLESS)
async def test_endless_answer_is_given_up(part: str) -> None:
    sent = 0

    async def flood(stream: trio.SocketStream) -> None:
        nonlocal sent
        await stream.send_all(ENDLESS[part])
        while True:
            await stream.send_all(b"x" * 65536)
            sent += 65536

    async with answering(flood) as users:
        with pytest.raises(UsersUnavailableError):
            await users.ask("alice")
        assert sent < 20_000_000, "it is not read to its end"
        assert ("larger than" if part != "headers" else "no whole answer of HTTP") in users.unreadable()[0]


async def test_certificate_is_verified(tmp_path: Path) -> None:
    ca, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(context)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(context) as server:
        config = replace(config_of(server, "https", "localhost"), ca=tmp_path / "ca.pem")
        assert await server_faults(config) is None
        fault = await server_faults(replace(config, ca=None))
        assert fault is not None
        assert fault[0] == "ca"
        assert "certificate cannot be verified" in fault[1]
        fault = await server_faults(replace(config, url=config.url.replace("localhost", "127.0.0.1")))
        assert fault is not None
        assert (fault[0], "certificate is not valid for '127.0.0.1'" in fault[1]) == ("url", True)
        fault = await server_faults(replace(config, ca=tmp_path / "none"))
        assert fault is not None
        assert (fault[0], "cannot be used" in fault[1]) == ("ca", True)
        fault = await server_faults(replace(config, token_file=tmp_path / "none"))
        assert fault is not None
        assert fault[0] == "token_file"
    fault = await server_faults(config)
    assert fault is not None
    assert (fault[0], "there is no connection" in fault[1]) == ("url", True)


def load(directory: Path, lines: str) -> Config:
    file = directory / "node.toml"
    file.write_text(f'node.id = "a"\nusers.source = "endpoint"\n[endpoint]\n{lines}', encoding="utf-8")
    return load_config(file, serving=True)


def test_configuration(tmp_path: Path) -> None:
    for name in ("ca.pem", "token"):
        (tmp_path / name).touch()
    more = 'ca = "ca.pem"\ntoken_file = "token"\ntimeout = "2s"\ncache = "5m"\ncache_missing = "1s"\n'
    config = load(tmp_path, f'url = "https://auth.example.org/users"\n{more}')
    url = "https://auth.example.org/users"
    expected = EndpointConfig(url, tmp_path / "ca.pem", tmp_path / "token", 2.0, 300.0, 1.0)
    assert user_server(config) == expected
    (tmp_path / "again.toml").write_text(config_text(config, tmp_path))
    assert load_config(tmp_path / "again.toml") == config
    assert default_config("a", tmp_path).endpoint is None


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "3: 'url' is missing in"),
        ('url = "http://auth.example.org/users"\n', "4: url: passwords would cross the network"),
        ('url = "ftp://auth.example.org/users"\n', "4: url: expected a URL"),
        ('url = "http://127.0.0.1:8000/users"\nca = "node.toml"\n', "5: ca: it has no use without TLS"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, lines: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, lines)
    assert f"node.toml:{problem}" in str(refused.value)
