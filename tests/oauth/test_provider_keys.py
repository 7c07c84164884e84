# ruff: noqa: ARG001 - a test requests a clock fixture for its effect
"""Times at which keys are read, and keys that are in force; in virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from replicator.config import ALGORITHMS, OauthConfig
from replicator.errors import ConfigError, UnavailableError
from replicator.oauth import KeySet, ProviderKeys, key_source
from replicator.oauth.key_set import JWKS_BYTES_MAX
from replicator.oauth.provider_keys import PAUSE_S, WAIT_S
from replicator.runtime.environment import Environment
from replicator.runtime.metrics import OauthMetrics
from tests.oauth.issuer import AUDIENCE, ISSUER, SigningKey, key_set

OLD, NEW = SigningKey("old"), SigningKey("new", which=1)
REFRESH_S = 3600.0


@dataclass
class Provider:
    """`takes_s`: how long it takes to answer. `down`: it does not answer."""

    published: Sequence[SigningKey] = (OLD,)
    down: bool = False
    takes_s: float = 0.0
    read_at: list[float] = field(default_factory=list)

    async def read(self) -> KeySet:
        self.read_at.append(trio.current_time())
        await trio.sleep(self.takes_s)
        if self.down:
            raise ConfigError("[oauth] jwks: cannot use it: it is down")
        return KeySet.parse(key_set(*self.published), ALGORITHMS)


@asynccontextmanager
async def kept(provider: Provider, metrics: OauthMetrics | None = None) -> AsyncIterator[ProviderKeys]:
    keys = ProviderKeys(provider.read, refresh_s=REFRESH_S, metrics=metrics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keys.run)
        await trio.testing.wait_all_tasks_blocked()
        yield keys
        nursery.cancel_scope.cancel()


async def ids(keys: ProviderKeys, key: SigningKey) -> list[str | None]:
    return [found.kid for found in await keys.fitting(key.kid, "ES256")]


async def test_rotated_key_is_found_at_once(autojump_clock: trio.testing.MockClock) -> None:
    provider = Provider()
    async with kept(provider) as keys:
        await trio.sleep(PAUSE_S)
        provider.published = (NEW,)
        assert await ids(keys, OLD) == ["old"]
        assert await ids(keys, NEW) == ["new"]
        assert await ids(keys, OLD) == []
        assert len(provider.read_at) == 2


async def test_unknown_keys_bring_about_one_reading_in_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    provider = Provider()
    async with kept(provider) as keys:
        for _ in range(600):
            assert await ids(keys, NEW) == []
            await trio.sleep(1)
    assert len(provider.read_at) == 10
    assert all(later - earlier >= PAUSE_S for earlier, later in pairwise(provider.read_at))


async def test_all_who_wait_share_a_reading(autojump_clock: trio.testing.MockClock) -> None:
    provider = Provider(takes_s=5)
    async with kept(provider) as keys, trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await ids(keys, NEW) == ["new"]

        provider.published = (NEW,)
        for _ in range(20):
            nursery.start_soon(ask)  # during the first reading
    assert len(provider.read_at) == 1


async def test_caller_that_gives_up_leaves_the_others_their_answer(autojump_clock: trio.testing.MockClock) -> None:
    provider = Provider()
    async with kept(provider) as keys:
        await trio.sleep(PAUSE_S)
        provider.published, provider.takes_s = (NEW,), 5
        with trio.move_on_after(1) as gives_up:
            await ids(keys, NEW)
        assert gives_up.cancelled_caught
        assert await ids(keys, NEW) == ["new"]
    assert len(provider.read_at) == 2


async def test_keys_are_read_again_at_intervals(autojump_clock: trio.testing.MockClock) -> None:
    provider = Provider()
    async with kept(provider) as keys:
        provider.published = (NEW,)
        await trio.sleep(REFRESH_S + 1)
        assert await ids(keys, NEW) == ["new"]
        assert len(provider.read_at) == 2


async def test_last_good_keys_stay_in_force_while_the_provider_is_down(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    provider, registry = Provider(), CollectorRegistry()
    caplog.set_level(logging.INFO, "replicator.oauth")
    async with kept(provider, OauthMetrics(registry)) as keys:
        provider.down = True
        await trio.sleep(REFRESH_S + 10 * PAUSE_S + 1)
        assert len(provider.read_at) == 12  # every minute
        assert await ids(keys, OLD) == ["old"]
        provider.down = False
        await trio.sleep(REFRESH_S)
        assert len(provider.read_at) == 13  # and then every hour
        provider.down = True
        await trio.sleep(PAUSE_S)
    assert [record.getMessage() for record in caplog.records] == [
        "the identity provider's keys were read keys=1 ids=old",
        "[oauth] jwks: cannot use it: it is down; the last keys stay in force",
        "the identity provider's keys were read keys=1 ids=old",
        "[oauth] jwks: cannot use it: it is down; the last keys stay in force",
    ]
    for result, times in (("ok", 2), ("failed", 12)):
        assert registry.get_sample_value("replicator_oauth_key_reads_total", {"result": result}) == times


async def test_nobody_is_judged_before_there_are_keys(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider(down=True)
    async with kept(provider) as keys:
        with pytest.raises(UnavailableError):
            await keys.fitting("old", "ES256")
        assert "nobody can log in by a token" in caplog.text
        provider.down = False
        await trio.sleep(PAUSE_S)
        assert await ids(keys, OLD) == ["old"]


async def test_client_waits_for_a_bounded_time(autojump_clock: trio.testing.MockClock) -> None:
    async with kept(Provider(takes_s=10_000)) as keys:
        began = trio.current_time()
        with pytest.raises(UnavailableError):
            await keys.fitting("old", "ES256")
        assert trio.current_time() - began == WAIT_S


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"nonsense", "it is not JSON"),
        (b" " * (JWKS_BYTES_MAX + 1), f"it is larger than {JWKS_BYTES_MAX} bytes"),
    ],
)
async def test_unusable_file_is_told_with_its_key(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    config = OauthConfig(ISSUER, AUDIENCE, file, "email")
    read = key_source(config, Environment(), lambda: None)
    with pytest.raises(ConfigError) as refused:
        await read()
    assert str(refused.value) == f"[oauth] jwks: cannot use {file}: {why}"
    file.write_bytes(key_set(OLD))
    assert [key.kid for key in (await read()).keys] == ["old"]
