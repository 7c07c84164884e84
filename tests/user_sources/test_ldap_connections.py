"""Connections to an LDAP server that does what no real one should: when they are kept, and what an answer may take."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
import trio

from replicator.config import LdapConfig
from replicator.runtime.environment import Abandoning
from replicator.user_sources import ldap
from replicator.user_sources.ldap import LdapSource
from replicator.users import SourceError
from tests.user_sources.fake_ldap import BIND, SEARCH, entry, fake_ldap, result

BUSY, SIZE_LIMIT_EXCEEDED = 51, 4


def source_at(url: str, timeout_s: float = 5.0) -> LdapSource:
    return LdapSource(LdapConfig(url, "dc=x", "(uid=%u)", "uid", timeout_s=timeout_s), Abandoning())


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
