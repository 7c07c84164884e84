"""Users whom a Dovecot knows: Debian's, and sockets that say what none does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.config import Config, DovecotAuthConfig, config_text, load_config, user_server
from replicator.errors import ConfigError, UsersUnavailableError
from replicator.user_sources import server_faults, users_of_server
from replicator.user_sources.dovecot import DovecotSource
from replicator.users import EntryError, ExternalDirectory, Found, Identity, Login, QuotaLimits, SourceError, add_user
from replicator.users.attempts.throttle import FREE_FAILURES_PAIR
from replicator.users.elsewhere.answers import AFTER_FAILURE_S
from tests.user_sources.dovecot_auth import DOWN, Dovecot, dovecot, needs_dovecot


@pytest.fixture(scope="module")
def server() -> Iterator[Dovecot]:
    with dovecot() as server:
        yield server


def directory_of(config: DovecotAuthConfig) -> ExternalDirectory:
    return users_of_server(config, lambda: 1_000, CollectorRegistry(), quota=QuotaLimits(5, 5))


@needs_dovecot
async def test_names_passwords_and_quotas(server: Dovecot) -> None:
    users = directory_of(server.config)
    assert await users.verify("Alice@Example.org", "secret", address="192.0.2.1") == Login("alice", address="192.0.2.1")
    assert await users.verify("dave", "p\u00e4\u00ad ss", address="2001:db8::1")
    for name, password in (("alice", "wrong"), ("nobody", "secret"), ("bob", "hidden"), ("alice", "x" * 5000)):
        assert await users.verify(name, password) is None
    for name in ("no\tbody", "a\1tb", "nobody@example.org", "alice\nPASS\t2\tbob", "a%b", "\udcff"):
        assert await users.ask(name) is None
    assert await users.quota_limits("alice") == QuotaLimits(1024**3, 5)
    assert await users.quota_limits("bob") == QuotaLimits(5, 5)
    assert await users.quota_limits("erin") == QuotaLimits(None, None)
    assert await users.quota_limits("frank") == QuotaLimits(None, 5)
    assert not users.unreadable()


@needs_dovecot
async def test_user_whose_quota_makes_no_sense_has_the_default(
    server: Dovecot, caplog: pytest.LogCaptureFixture
) -> None:
    users = directory_of(server.config)
    assert await users.verify("carol", "quiet") == Login("carol")
    assert await users.quota_limits("carol") == QuotaLimits(5, 5)
    await users.try_login("carol", "quiet")
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"one user has the default quota: Dovecot at {server.config.userdb}: carol: expected a size")


@needs_dovecot
async def test_trial_tells_what_dovecot_said(server: Dovecot) -> None:
    users = directory_of(server.config)
    right, wrong = await users.try_login("alice@example.org", "secret"), await users.try_login("alice", "x")
    assert (right.user, right.reasons, right.answer) == ("alice", (), "Dovecot accepts it")
    assert right.origin == f"Dovecot at {server.config.userdb}: alice"
    assert ([reason.obstacle for reason in wrong.reasons], wrong.answer) == (["wrong_password"], "Dovecot refuses it")
    told = (await users.try_login("bob", "hidden")).answer
    assert told == "Dovecot accepts it, but lets nobody in here (nologin)"


@needs_dovecot
async def test_passdb_decides_about_passwords_alone(server: Dovecot, tmp_path: Path) -> None:
    """It does not hear of log-ins by anything else, which docs/security.md tells operators."""
    add_user(tmp_path / "masters", "admin", "mighty", scheme="PLAIN")
    masters = tmp_path / "masters"
    users = users_of_server(server.config, lambda: 1_000, CollectorRegistry(), masters=masters, separator="*")
    assert await users.verify("bob", "hidden") is None
    by_token = await users.admit("bob", Identity("bob", 2_000))
    by_master = await users.verify("bob*admin", "mighty")
    assert [login and login.user for login in (by_token, by_master)] == ["bob", "bob"]


@needs_dovecot
async def test_dovecot_that_is_down_makes_nobody_unknown(mock_clock: trio.testing.MockClock) -> None:
    with dovecot() as server:
        users = directory_of(server.config)
        assert await users.ask("alice") == "alice"
        server.stop()
        mock_clock.jump(server.config.cache_s)
        assert await users.ask("alice") == "alice"
        for name in ("dave", "nobody"):
            with pytest.raises(UsersUnavailableError):
                await users.verify(name, "x")
        assert "there is no connection" in users.unreadable()[0]
        server.start()
        mock_clock.jump(AFTER_FAILURE_S)
        assert await users.verify("alice", "secret") == Login("alice")
        assert not users.unreadable()


@needs_dovecot
async def test_passwords_are_not_wrong_while_no_passdb_can_tell() -> None:
    """Nobody waits for failures afterwards, and the node is well: who is a user is known."""
    with dovecot(passdb=DOWN) as server:
        users = directory_of(server.config)
        for name in (*["alice"] * (FREE_FAILURES_PAIR + 1), "nobody"):
            with pytest.raises(UsersUnavailableError):
                await users.verify(name, "secret", address="192.0.2.1")
        with pytest.raises(UsersUnavailableError, match="cannot check the password of 'alice' now"):
            await users.try_login("alice", "secret")
        assert not users.penalties()
        assert not users.unreadable()


@needs_dovecot
async def test_log_in_that_dovecot_answers_late_is_no_failure_of_all() -> None:
    with dovecot(delay_s=60) as server:
        users = directory_of(replace(server.config, timeout_s=1.0))
        assert await users.verify("alice", "secret") == Login("alice")
        with pytest.raises(UsersUnavailableError):
            await users.verify("dave", "wrong")
        text = f"Dovecot at {server.config.auth}: there was no answer within 1 s; .* auth_failure_delay"
        with pytest.raises(UsersUnavailableError, match=text):
            await users.try_login("dave", "wrong")
        assert not users.penalties()
        assert not users.unreadable()


@needs_dovecot
async def test_user_about_whom_the_userdb_fails_is_no_failure_of_all(server: Dovecot) -> None:
    users = directory_of(server.config)
    with pytest.raises(UsersUnavailableError):
        await users.verify("jane", "odd")
    with pytest.raises(UsersUnavailableError, match="cannot look 'jane' up"):
        await users.try_login("jane", "odd")
    assert not users.unreadable()


@needs_dovecot
async def test_userdb_that_fails_about_everybody_is_a_failure_of_all() -> None:
    with dovecot(userdb=DOWN) as server:
        users = directory_of(server.config)
        with pytest.raises(UsersUnavailableError):
            await users.ask("alice")
        assert users.unreadable() == [f"Dovecot at {server.config.userdb}: it cannot look users up: its log says why"]
        assert await server_faults(server.config) == ("userdb", *users.unreadable())


@needs_dovecot
async def test_what_is_wrong_with_the_settings(server: Dovecot, tmp_path: Path) -> None:
    config = server.config
    assert await server_faults(config) is None
    none = tmp_path / "none"
    for changed, key, text in (
        (replace(config, userdb=none), "userdb", "there is no connection"),
        (replace(config, auth=none), "auth", "there is no connection"),
        (replace(config, userdb=config.auth), "userdb", "has closed the connection"),
        (replace(config, auth=config.userdb), "auth", "has closed the connection"),
    ):
        fault = await server_faults(replace(changed, timeout_s=2.0))
        assert fault is not None
        assert (fault[0], text in fault[1]) == (key, True), fault


@needs_dovecot
async def test_plain_is_needed() -> None:
    with dovecot("cram-md5") as server:
        key, text = await server_faults(server.config) or ("", "")
    assert (key, "does not take PLAIN" in text) == ("auth", True), text


GREETING = b"VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\tx\nDONE\n"
USERDB_GREETING = b"VERSION\t1\t1\nSPID\t1\n"


@asynccontextmanager
async def saying(directory: Path, say: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[DovecotSource]:
    """Yield a Dovecot both of whose sockets are served by a function."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await say(stream)
                async for _ in stream:  # until the client has gone
                    pass
            except trio.BrokenResourceError:
                pass

    path = directory / "s"
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    listening.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listening)])
        yield DovecotSource(DovecotAuthConfig(path, path, timeout_s=1.0))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"OK\t1\tuser=alice\n", True),
        (b"OK\t1\n", True),
        (b"OK\t1\tuser=alice\ttemp=1\tcode=temp_fail\n", True),
        (b"OK\t2\tuser=alice\nFAIL\t1\tuser=alice\n", False),
        (b"FAIL\t1\tuser=alice\tcode=user_disabled\n", False),
        (b"OK\t1\tuser=alice\tproxy\thost=192.0.2.1\n", False),
        (b"OK\t1\tuser=bob\n", "is one of 'bob'"),
        (b"FAIL\t1\tuser=alice\tcode=pass_expired\n", False),
        (b"FAIL\t1\tuser=alice\tcode=authz_fail\n", False),
        (b"FAIL\t1\tuser=alice\tcode=never_heard_of\n", False),
        (b"FAIL\t1\tuser=alice\tcode=temp_fail\n", "cannot check the password"),
        (b"FAIL\t1\ttemp\n", "cannot check the password"),
        (b"FAIL\t1\ttemp\treason=no\x01tdatabase\n", "no\\tdatabase"),
        (b"CONT\t1\t\n", "cannot check the password"),
        (b"", "auth_failure_delay"),
        (b"\xff\n\n\t\n", "no answer within 1 s"),
        (b"x" * 100_000, "larger than 65536 bytes"),
    ],
)
async def test_answers_about_passwords(tmp_path: Path, answer: bytes, outcome: bool | str) -> None:  # noqa: FBT001
    async def say(stream: trio.SocketStream) -> None:
        await stream.send_all(GREETING + answer)

    async with saying(tmp_path, say) as source:
        found = Found("alice", "alice")
        if isinstance(outcome, str):
            with pytest.raises(EntryError) as error:
                await source.check(found, "secret", "192.0.2.1")
            assert outcome in str(error.value)
        else:
            assert (await source.check(found, "secret", "192.0.2.1")).is_right == outcome


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"USER\t1\tAlice\tquota_storage_size=5G\tquota_message_count=7\n", {"storage_bytes": 5 << 30, "messages": 7}),
        (b"USER\t1\talice\n", {}),
        (b"NOTFOUND\t1\n", None),
        (b"FAIL\t1\treason=broken\nFAIL\t2\n", "cannot look users up: broken"),
        (b"FAIL\t1\nFAIL\t2\n", "cannot look users up: its log says why"),
        (b"FAIL\t1\treason=broken\nNOTFOUND\t2\n", "cannot look 'alice' up: broken"),
        (b"USER\t1\n", "cannot look users up"),
        (b"y" * 100_000, "larger than 65536 bytes"),
    ],
)
async def test_answers_about_users(tmp_path: Path, answer: bytes, outcome: dict[str, int | None] | str | None) -> None:
    async def say(stream: trio.SocketStream) -> None:
        await stream.send_all(USERDB_GREETING + answer)

    async with saying(tmp_path, say) as source:
        if isinstance(outcome, str):
            with pytest.raises(SourceError) as error:
                await source.look_up("alice")
            assert outcome in str(error.value)
        else:
            found = await source.look_up("alice")
            assert (None if found is None else found.limits) == outcome
            assert found is None or found.user == "alice"


def load(directory: Path, lines: str) -> Config:
    file = directory / "node.toml"
    file.write_text(f'node.id = "a"\nusers.source = "dovecot"\n{lines}', encoding="utf-8")
    return load_config(file, serving=True)


def test_configuration(tmp_path: Path) -> None:
    lines = 'userdb = "/run/dovecot/auth-userdb"\nauth = "auth"\ncache = "5m"\n'
    config = load(tmp_path, f"[dovecot_auth]\n{lines}")
    expected = DovecotAuthConfig(Path("/run/dovecot/auth-userdb"), tmp_path / "auth", 5.0, 300.0, 10.0)
    assert user_server(config) == expected
    (tmp_path / "again.toml").write_text(config_text(config, tmp_path))
    assert load_config(tmp_path / "again.toml") == config
    assert load(tmp_path, f"[dovecot]\n{lines}") == config, "as it was called in version 0.2"
    with pytest.raises(ConfigError, match="'auth' is missing in"):
        load(tmp_path, '[dovecot_auth]\nuserdb = "/run/dovecot/auth-userdb"\n')
    with pytest.raises(ConfigError, match=r"add a section \[dovecot_auth\]"):
        load(tmp_path, "")
