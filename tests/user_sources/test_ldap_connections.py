"""Connections to an LDAP server that does what no real one should: when they are kept, and what an answer may take."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry

from replicator.config import LdapConfig
from replicator.errors import UsersUnavailableError
from replicator.runtime.environment import Abandoning
from replicator.user_sources import ldap, server_faults, users_of_server
from replicator.user_sources.certificates import server_context
from replicator.user_sources.ldap import LdapSource
from replicator.users import Found, SourceError
from tests.user_sources.fake_ldap import BIND, SEARCH, STARTTLS, entry, fake_ldap, result

BUSY, UNAVAILABLE, SIZE_LIMIT_EXCEEDED = 51, 52, 4


def source_at(url: str, timeout_s: float = 5.0) -> LdapSource:
    return LdapSource(LdapConfig(url, "dc=x", "(uid=%u)", "uid", timeout_s=timeout_s), lambda: None, Abandoning())


@pytest.mark.parametrize(("code", "connections"), [(0, 1), (BUSY, 2)])
async def test_connection_is_kept_only_after_a_success(code: int, connections: int) -> None:
    asked = Counter[trio.SocketStream]()

    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        asked[stream] += 1
        is_first = len(asked) == 1
        await stream.send_all(result(number, operation, code if is_first and operation == SEARCH else 0))

    async with fake_ldap(serve) as url:
        source = source_at(url)
        with suppress(SourceError):
            await source.look_up("alice")
        for _ in range(3):
            assert await source.look_up("alice") is None
        source.close()
    assert len(asked) == connections


async def test_connection_is_kept_if_there_are_too_many_entries() -> None:
    binds = 0

    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        nonlocal binds
        binds += operation == BIND
        entries = [entry(number, dn, b"uid", b"alice") for dn in (b"uid=a,dc=x", b"uid=b,dc=x")]
        found, code = (b"".join(entries), SIZE_LIMIT_EXCEEDED) if operation == SEARCH else (b"", 0)
        await stream.send_all(found + result(number, operation, code))

    async with fake_ldap(serve) as url:
        source = source_at(url)
        for _ in range(3):
            with pytest.raises(SourceError, match="more than one entry"):
                await source.look_up("alice")
        source.close()
    assert binds == 1


async def test_connection_that_is_used_all_the_time_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    binds = 0

    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        nonlocal binds
        binds += operation == BIND
        await stream.send_all(result(number, operation))

    monkeypatch.setattr(ldap, "AGE_MAX_S", 0.0)
    async with fake_ldap(serve) as url:
        source = source_at(url)
        for _ in range(3):
            assert await source.look_up("alice") is None
        source.close()
    assert binds == 3


@pytest.mark.parametrize("octets", [b"x", b"x" * 65536])
@pytest.mark.parametrize("asks", ["look_up", "check"])
async def test_endless_answer_is_given_up_and_its_connection_closed(octets: bytes, asks: str) -> None:
    """A value of 2 GiB begins, and comes octet by octet, or as fast as it is read."""
    sent, gone = 0, trio.Event()

    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        nonlocal sent
        if operation == BIND and asks == "look_up":
            await stream.send_all(result(number, operation))
            return
        await stream.send_all(b"\x30\x84\x7f\xff\xff\xff")
        try:
            while True:
                await stream.send_all(octets)
                sent += len(octets)
                if len(octets) == 1:
                    await trio.sleep(0.01)
        except trio.BrokenResourceError:
            gone.set()
            raise

    async with fake_ldap(serve) as url:
        source = source_at(url, timeout_s=0.5)
        with trio.fail_after(60):
            with pytest.raises(SourceError, match="larger than 65536 bytes" if len(octets) > 1 else "within 0.5 s"):
                await (source.look_up("alice") if asks == "look_up" else source.check(None, "secret", None))
            await gone.wait()
    assert sent < 20_000_000, "it is not read to its end"


async def test_connection_is_closed_once_nobody_waits_for_the_answer() -> None:
    is_asked, gone = trio.Event(), trio.Event()

    async def serve(stream: trio.SocketStream, *_: int) -> None:
        is_asked.set()
        assert not await stream.receive_some()
        gone.set()

    async with fake_ldap(serve) as url, trio.open_nursery() as nursery:
        with trio.fail_after(60):
            nursery.start_soon(source_at(url, timeout_s=1e6).look_up, "alice")
            await is_asked.wait()
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(60):
            await gone.wait()


@pytest.mark.parametrize(
    ("code", "fails"), [(0, False), (49, False), (80, False), (8, False), (1, False), (BUSY, True), (UNAVAILABLE, True)]
)
async def test_answer_to_one_log_in_is_no_failure_of_the_server(code: int, *, fails: bool) -> None:
    searched = trio.Event()

    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        found = entry(number, b"uid=alice,dc=x", b"uid", b"alice") if operation == SEARCH else b""
        is_check = operation == BIND and searched.is_set()
        if operation == SEARCH:
            searched.set()
        await stream.send_all(found + result(number, operation, code if is_check else 0))

    async with fake_ldap(serve) as url:
        users = users_of_server(LdapConfig(url, "dc=x", "(uid=%u)", "uid"), lambda: 1_000, CollectorRegistry())
        outcome = "refused"
        try:
            if await users.verify("alice", "secret"):
                outcome = "right"
        except UsersUnavailableError:
            outcome = "failed"
        users.close()
    assert outcome == {0: "right", 49: "refused"}.get(code, "failed")
    assert bool(users.unreadable()) == fails


async def test_text_of_the_server_is_shown_without_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        dn = b"uid=a\n2026-11-27T00:00:00Z ERROR all is lost\x1b[2J,dc=x"
        found = entry(number, dn, *says) if operation == SEARCH else b""
        await stream.send_all(found + result(number, operation))

    shown: list[str] = []
    async with fake_ldap(serve) as url:
        config = LdapConfig(url, "dc=x", "(uid=%u)", "uid", quota_attribute="quota")
        for attribute, value in ((b"uid", b"alice"), (b"uid", b"al\x1bice"), (b"quota", b"\x1b[2J")):
            says = attribute, value
            users = users_of_server(config, lambda: 1_000, CollectorRegistry())
            try:
                shown.append(str((await users.try_login("alice", "secret")).origin))
            except UsersUnavailableError as error:
                shown.append(str(error))
            shown += (account.origin for account in users.accounts())
            users.close()
    shown += (record.getMessage() for record in caplog.records)
    assert len(shown) >= 5
    assert all(text.isprintable() for text in shown)
    assert "uid=a\\n2026" in shown[0]


@pytest.mark.parametrize("has_password", [True, False])
async def test_nothing_is_sent_if_starttls_is_refused(tmp_path: Path, *, has_password: bool) -> None:
    heard = []

    async def serve(stream: trio.SocketStream, operation: int, number: int) -> None:
        heard.append(operation)
        await stream.send_all(result(number, operation, UNAVAILABLE))

    password = tmp_path / "password"
    await trio.Path(password).write_text("secret\n")
    async with fake_ldap(serve) as url:
        config = LdapConfig(url, "dc=x", "(uid=%u)", "uid", starttls=True)
        if has_password:
            config = replace(config, bind_dn="cn=mail", password_file=password)
        key, text = await server_faults(config) or ("", "")
        source = LdapSource(config, lambda: server_context(config), Abandoning())
        with pytest.raises(SourceError, match="StartTLS"):
            await source.check(Found("alice", "uid=alice,dc=x"), "secret", None)
    assert (key, "StartTLS" in text) == ("starttls", True)
    assert set(heard) == {STARTTLS}
