"""Certificates that are read again, when many ask at once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
import trustme

from replicator.config import (
    Address,
    Config,
    DoveadmConfig,
    DovecotConfig,
    DurabilityConfig,
    LdapConfig,
    LogConfig,
    OauthConfig,
    PeerConfig,
    QuotaConfig,
    TlsConfig,
    UsersConfig,
    default_config,
)
from replicator.errors import ConfigError
from replicator.network.certificates import Certificates
from replicator.network.rehearsal import certificate_faults
from replicator.node_parts import exposed_secrets
from replicator.oauth import ProviderKeys, key_source
from replicator.reloading import Configuration, Reloading
from replicator.runtime.environment import Environment
from tests.end_to_end.helpers.certificates import certificate
from tests.oauth.issuer import SigningKey, key_set

T = TypeVar("T")


class NotedReadings:
    """Runs work in this thread, once `may_go_on` is set, and notes when it began."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.may_go_on = trio.Event()

    async def __call__(self, work: Callable[[], T]) -> T:
        if work.__name__ == Certificates.read.__name__:
            self.began.append(trio.current_time())
        result = work()
        await self.may_go_on.wait()
        return result


@pytest.fixture
def files(tmp_path: Path) -> TlsConfig:
    return certificate(trustme.CA(), tmp_path, "dc1")


@pytest.fixture
def readings() -> NotedReadings:
    return NotedReadings()


@pytest.fixture
def reloading(files: TlsConfig, readings: NotedReadings) -> Reloading:
    return Reloading(Certificates(files), replace(Environment(), run_in_thread=readings))


async def test_who_asks_during_a_reading_shares_the_next_one(
    reloading: Reloading, readings: NotedReadings, files: TlsConfig
) -> None:
    told: list[str] = []

    async def ask() -> None:
        try:
            told.extend(each.name for each in (await reloading.reload())[:1])
        except ConfigError:
            told.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        files.certificate.write_bytes(b"")
        for _ in range(20):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        readings.may_go_on.set()
    assert (len(readings.began), told) == (2, ["dc1", *["refused"] * 20])


async def test_caller_that_gives_up_leaves_the_others_their_answer(
    reloading: Reloading, readings: NotedReadings
) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(partial(_cancel_when_blocked, scope))
            await reloading.reload()
        readings.may_go_on.set()
        assert [each.name for each in await reloading.reload()][:1] == ["dc1"]
    assert len(readings.began) == 2


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_signals_without_end_bring_about_a_reading_a_second(
    reloading: Reloading, readings: NotedReadings, autojump_clock: trio.testing.MockClock
) -> None:
    readings.may_go_on.set()
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reloading.reload_at_each, signals)
            for _ in range(250):
                os.kill(os.getpid(), signal.SIGHUP)
                await trio.sleep(0.01)
            last = autojump_clock.current_time()
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
    assert len(readings.began) == 4  # at once, and then at the end of each second
    assert readings.began[-1] >= last - 0.01


async def test_secrets_that_others_can_read_are_told_at_each_reading(
    files: TlsConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = [tmp_path / name for name in ("users.passwd", "masters", "doveadm.password", "dovecot.password", "ldap")]
    for file in secrets:
        file.write_text("secret\n")
    users, masters, doveadm, dovecot, ldap = secrets
    config = replace(
        default_config("dc1", tmp_path),
        users=UsersConfig(users, master_passwd_file=masters),
        tls=files,
        doveadm=DoveadmConfig(doveadm),
        dovecots=(DovecotConfig(Address("127.0.0.1", 1), dovecot),),
        ldap=LdapConfig("ldap://127.0.0.1", "", "", "", password_file=ldap),
    )
    reloading = Reloading(Certificates(files), Environment(), exposed=partial(exposed_secrets, config))
    secrets.append(files.key)
    for file in secrets:
        file.chmod(0o640)
    await reloading.reload()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    for file in secrets:
        file.chmod(0o644)
    await reloading.reload()
    assert {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING} == {
        f"{file}: everybody on this machine can read it (mode 0644); close it by `chmod o= {file}`" for file in secrets
    }


async def test_a_certificate_that_other_nodes_would_refuse_is_used_and_the_log_says_so(
    files: TlsConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files.key.chmod(0o600)
    certificates = Certificates(files)
    faults = partial(certificate_faults, "dc1", files, certificates)
    reloading = Reloading(certificates, Environment(), faults=faults)
    await reloading.reload()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    other = certificate(trustme.CA(), tmp_path, "other")
    files.certificate.write_bytes(other.certificate.read_bytes())
    files.key.write_bytes(other.key.read_bytes())
    [shown, _] = await reloading.reload()
    assert shown.name == "other"
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith(f"{files.certificate} is not signed by this node's [tls] ca; all nodes need")


async def test_each_reload_tells_the_keys_in_force(
    files: TlsConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "replicator.oauth")
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(SigningKey("first"), SigningKey("second")))
    oauth = OauthConfig("https://id.example.org", "mail", file, "email")
    keys = ProviderKeys(key_source(oauth, Environment(), lambda: None), refresh_s=60)
    reloading = Reloading(Certificates(files), Environment(), keys)
    for _ in range(2):
        await reloading.reload()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("replicator.oauth")]
    assert said == ["the identity provider's keys were read keys=2 ids=first,second"] * 2


async def test_keys_and_certificates_are_replaced_together_or_not_at_all(files: TlsConfig, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(SigningKey("old")))
    oauth = OauthConfig("https://id.example.org", "mail", file, "email")
    keys = ProviderKeys(key_source(oauth, Environment(), lambda: None), refresh_s=60)
    certificates = Certificates(files)
    reloading = Reloading(certificates, Environment(), keys)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keys.run)
        assert len(await keys.fitting("old", "ES256")) == 1
        before = certificates.for_clients()
        file.write_bytes(b"nonsense")
        with pytest.raises(ConfigError, match=r"^\[oauth\] jwks: cannot use .*: it is not JSON$"):
            await reloading.reload()
        assert certificates.for_clients() is before
        file.write_bytes(key_set(SigningKey("new")))
        good = files.certificate.read_bytes()
        files.certificate.write_bytes(b"")
        with pytest.raises(ConfigError, match=r"^\[tls\]"):
            await reloading.reload()
        assert not await keys.fitting("new", "ES256")
        files.certificate.write_bytes(good)
        await reloading.reload()
        assert certificates.for_clients() is not before
        assert len(await keys.fitting("new", "ES256")) == 1
        nursery.cancel_scope.cancel()


async def test_certificates_stay_where_another_process_refuses_them(files: TlsConfig) -> None:
    refuses = True

    async def elsewhere() -> None:
        await trio.lowlevel.checkpoint()
        if refuses:
            raise ConfigError("door 1: no")

    certificates = Certificates(files)
    reloading = Reloading(certificates, Environment(), elsewhere=elsewhere)
    before = certificates.for_clients()
    with pytest.raises(ConfigError, match="door 1: no"):
        await reloading.reload()
    assert certificates.for_clients() is before
    refuses = False
    await reloading.reload()
    assert certificates.for_clients() is not before


def test_each_change_of_a_quota_is_told_once_and_also_when_it_is_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    before = default_config("dc1", Path("/srv"))
    after = replace(before, quota=QuotaConfig(messages=5), log=LogConfig(keep_s=3600))
    installed = list[Config]()
    configuration = Configuration(before, lambda: after, installed.append)
    told = list[tuple[bool, bool]]()
    for config in (after, after, before):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            configuration.install(config)
        told.append(("in force now: quota.messages" in caplog.text, "after a restart: log.keep" in caplog.text))
    assert told == [(True, True), (False, True), (True, False)]
    running = replace(before, quota=after.quota)
    assert installed == [running, running, before]
    assert configuration.restart_for == ()


def test_peers_are_in_force_at_once_with_the_copies_that_they_are_to_have(caplog: pytest.LogCaptureFixture) -> None:
    dc2, dc3 = PeerConfig("dc2", Address("127.0.0.1", 2)), PeerConfig("dc3", Address("127.0.0.1", 3))
    before = default_config("dc1", Path("/srv"), peers=(dc2, dc3))
    node = replace(before.node, removed=("dc3",), priority=7, cluster="other")
    moved = replace(dc2, address=Address("127.0.0.1", 4))
    after = replace(before, peers=(moved,), node=node, durability=DurabilityConfig(1))
    installed = list[Config]()
    configuration = Configuration(before, lambda: after, installed.append)
    with caplog.at_level(logging.INFO):
        configuration.install(after)
    assert "in force now: [[peer]], durability.copies, node.priority, node.removed" in caplog.text
    assert configuration.restart_for == ("node.cluster",)
    assert installed == [replace(after, node=replace(node, cluster=before.node.cluster))]


def test_peers_wait_for_the_restart_that_their_tls_waits_for(files: TlsConfig) -> None:
    """The node would dial them by its former [tls], perhaps without any, on a line that the new one is to protect."""
    before = default_config("dc1", Path("/srv"))
    far = PeerConfig("dc2", Address("mail.example.org", 2))
    after = replace(before, peers=(far,), tls=files, durability=DurabilityConfig(2), quota=QuotaConfig(messages=5))
    installed = list[Config]()
    configuration = Configuration(before, lambda: after, installed.append)
    for _ in range(2):
        configuration.install(after)
        assert {"[[peer]]", "tls.certificate"} <= set(configuration.restart_for)
    assert installed == [replace(before, quota=after.quota)] * 2
