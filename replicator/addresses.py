"""Hosts and IP addresses: who is this machine itself, and who counts as one."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

SITE_PREFIX = 64
"""RFC 6177 section 2: one site has at least so many bits of IPv6 to itself, and may send from any of its addresses."""


def is_loopback(host: str | None) -> bool:
    """Whether nothing but this machine is meant. Names other than `localhost` are not looked up."""
    if host == "localhost":
        return True
    ip = _parse(host or "")
    return ip is not None and ip.is_loopback


def network_of(address: str) -> str:
    """What is counted as one stranger: an IPv4 address, or the network that one IPv6 site has."""
    ip = _parse(address)
    if ip is None:
        return address[:64]
    return str(ip_network((ip, SITE_PREFIX), strict=False)) if isinstance(ip, IPv6Address) else str(ip)


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """The address without its zone; IPv4 in IPv6 is IPv4."""
    try:
        ip = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
