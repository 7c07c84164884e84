"""The keys in which two configurations differ, as operators write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replicator.config import (
    Address,
    ClusterConfig,
    Config,
    DurabilityConfig,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    PeerConfig,
    QuotaConfig,
    TlsConfig,
    changed_keys,
    default_config,
)

PEER = PeerConfig("dc2", Address("dc2.example.org", 4420))
BEFORE = replace(default_config("dc1", Path("/srv")), peers=(PEER,), plain_links=True)
TLS = TlsConfig(Path("/srv/ca.pem"), Path("/srv/dc1.pem"), Path("/srv/dc1.key"))


def test_equal_configurations_have_no_changed_keys() -> None:
    assert changed_keys(BEFORE, replace(BEFORE)) == ()


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        (replace(BEFORE, durability=DurabilityConfig(copies=2)), ["durability.copies"]),
        (replace(BEFORE, log=replace(BEFORE.log, keep_s=1.0), quota=QuotaConfig(10)), ["log.keep", "quota.storage"]),
        (replace(BEFORE, limits=LimitsConfig(http_connections=7)), ["limits.http_connections"]),
        (replace(BEFORE, listen=ListenConfig(imap=Address("::1", 143))), ["listen.imap"]),
        (replace(BEFORE, node=replace(BEFORE.node, removed=("dc9",))), ["node.removed"]),
        (replace(BEFORE, peers=()), ["[[peer]]"]),
        (replace(BEFORE, peers=(replace(PEER, address=Address("dc2.example.org", 4421)),)), ["[[peer]]"]),
        (replace(BEFORE, clusters=(ClusterConfig("east"),)), ["[[cluster]]"]),
        (replace(BEFORE, tls=TLS), ["tls.ca", "tls.certificate", "tls.key", "tls.mode"]),
        (replace(BEFORE, users=replace(BEFORE.users, passwd_file=Path("/srv/other"))), ["users.passwd_file"]),
        (
            replace(BEFORE, users=replace(BEFORE.users, master_passwd_file=Path("/srv/m"), master_separator="*")),
            ["users.master_passwd_file", "users.master_separator"],
        ),
    ],
)
def test_changed_keys_are_named_as_in_the_file(after: Config, keys: list[str]) -> None:
    assert list(changed_keys(BEFORE, after)) == list(changed_keys(after, BEFORE)) == keys


def test_default_that_is_written_is_no_change() -> None:
    assert changed_keys(BEFORE, replace(BEFORE, log=LogConfig(), limits=LimitsConfig())) == ()
