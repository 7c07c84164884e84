"""Host names and IP addresses: recognising loopback, clients' addresses, and grouping them by site."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import trio

SITE_PREFIX = 64
"""Bits of an IPv6 site prefix. RFC 6177 section 2: a site has at least a /64 and may send from any address in it."""


def is_loopback(host: str | None) -> bool:
    """Return True if the host is this machine's loopback. Names other than `localhost` are not looked up."""
    if host == "localhost":
        return True
    ip = _parse(host or "")
    return ip is not None and ip.is_loopback


def network_of(address: str) -> str:
    """Return the key under which a client is counted: its IPv4 address, or the /64 network of its IPv6 address."""
    ip = _parse(address)
    if ip is None:
        return address[:64]
    return str(ip_network((ip, SITE_PREFIX), strict=False)) if isinstance(ip, IPv6Address) else str(ip)


def plain_address(text: str) -> str:
    """Return an IP address that somebody names, without its zone (RFC 4007 section 11). Raises ValueError."""
    return str(ip_address(text.partition("%")[0]))


def client_address(stream: trio.abc.Stream) -> str:
    """Return the peer's IP address; empty for a local socket, a stream in memory, and a peer that has gone already."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        name: object = stream.socket.getpeername()
    except OSError:
        return ""
    match name:
        case (str(host), *_):
            return host.partition("%")[0]
    return ""


def is_in(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Return True if the address is in one of the networks."""
    ip = _parse(address)
    return ip is not None and any(ip in network for network in networks)


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address without its zone, or None if it is not one. IPv4-mapped IPv6 becomes IPv4."""
    try:
        ip = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
