from __future__ import annotations

import pytest

from replicator.runtime.addresses import is_loopback, network_of


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("localhost.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_addresses_are_recognized(host: str | None, *, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("x" * 100, "x" * 64),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, network: str) -> None:
    assert network_of(address) == network
