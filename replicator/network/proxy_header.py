"""PROXY protocol: a proxy's header that names the client, in front of what the client sends.

Source: the specification of HAProxy (doc/proxy-protocol.txt), section 2.1 for version 1, which is a line, and section
2.2 for version 2, which is binary. Only addresses that the configuration trusts may send a header, and these must:
without one, all clients would count as the proxy, and if it runs on this machine, their passwords would pass for local
ones.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

import trio

from protocol.units import KIB
from replicator.config import ProxyConfig
from replicator.runtime.addresses import client_address, is_in, is_loopback, plain_address
from replicator.runtime.logs.fields import LogFields

log = logging.getLogger(__name__)

HEADER_S = 5.0
"""Seconds for the header. A proxy sends it at once; the specification asks for at least 3, for a lost packet."""

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED = struct.Struct("!12sBBH")  # signature; version and command; family and transport; length of the rest

REST_BYTES_MAX = 4 * KIB
"""Limit of addresses and extensions: proxies send some hundred bytes."""

VERSION = 2
LOCAL, PROXY = 0, 1
LINE_START = b"PROXY "
LINE_BYTES_MAX = 107  # of version 1, with its line end
ADDRESS_BYTES = {0x11: 4, 0x21: 16}  # TCP over IPv4, over IPv6
PORTS_BYTES = 4


class ProxyHeaderError(Exception):
    """A missing or invalid header."""


def client_of(fixed: bytes, rest: bytes) -> str | None:
    """Return the client's IP address; None: the connection is the proxy's own, or the client has no IP address.

    Raises ProxyHeaderError.
    """
    _, command, kind, _ = _checked(fixed)
    if command & 0x0F == LOCAL or kind not in ADDRESS_BYTES:
        return None
    size = ADDRESS_BYTES[kind]
    if len(rest) < 2 * size + PORTS_BYTES:
        raise ProxyHeaderError("the header ends within an address")
    source = rest[:size]
    return str(IPv4Address(source) if size == 4 else IPv6Address(source))


def rest_bytes(fixed: bytes) -> int:
    """Return how many bytes follow the fixed part. Raises ProxyHeaderError."""
    *_, length = _checked(fixed)
    return length


def _checked(fixed: bytes) -> tuple[bytes, int, int, int]:
    signature, command, kind, length = FIXED.unpack(fixed)
    if signature != SIGNATURE:
        raise ProxyHeaderError("it does not begin with a header of the PROXY protocol")
    if command >> 4 != VERSION or command & 0x0F not in {LOCAL, PROXY}:
        raise ProxyHeaderError(f"unknown version and command {command:#04x}")
    if length > REST_BYTES_MAX:
        raise ProxyHeaderError(f"the header has {length} bytes; at most {REST_BYTES_MAX} are allowed")
    return signature, command, kind, length


def client_of_line(line: bytes) -> str | None:
    """Return what `client_of` does, for the line of version 1 without its end. Raises ProxyHeaderError."""
    match line.split(b" "):
        case [b"PROXY", b"UNKNOWN", *_]:
            return None
        case [b"PROXY", b"TCP4" | b"TCP6", source, _, _, _]:
            try:
                return plain_address(source.decode("ascii"))
            except ValueError as error:
                raise ProxyHeaderError(f"the header names no IP address: {error}") from None
    raise ProxyHeaderError("the header of version 1 is neither UNKNOWN nor TCP4 or TCP6 with two addresses and ports")


class Client(NamedTuple):
    """A client's address, and whether its connection counts as being under TLS already."""

    address: str
    secure: bool = False


def behind_proxies(
    serve: Callable[[trio.SocketStream, Client], Awaitable[None]], proxies: ProxyConfig
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Return a handler that calls `serve` with the client, whose address trusted proxies name in a header."""

    async def handle(stream: trio.SocketStream) -> None:
        proxy = address = client_address(stream)
        if is_in(address, proxies.trusted):
            try:
                with trio.fail_after(HEADER_S):
                    address = await _named(stream, address)
            except (ProxyHeaderError, trio.TooSlowError, trio.BrokenResourceError) as error:
                reason = str(error) or "no header came in time"
                log.warning(
                    "refused a connection from a trusted proxy %s", LogFields({"proxy": address, "reason": reason})
                )
                await trio.aclose_forcefully(stream)
                return
        await serve(stream, Client(address, secure=is_in(proxy, proxies.private)))

    return handle


async def _named(stream: trio.SocketStream, proxy: str) -> str:
    begun = await _exactly(stream, len(SIGNATURE))  # less than the shortest line has
    if begun.startswith(LINE_START):
        client = client_of_line(await _line(stream, begun))
    else:
        fixed = begun + await _exactly(stream, FIXED.size - len(begun))
        client = client_of(fixed, await _exactly(stream, rest_bytes(fixed)))
    # A client on the proxy's machine is no client on this one.
    return proxy if client is None or is_loopback(client) else client


async def _line(stream: trio.SocketStream, begun: bytes) -> bytes:
    """Read the rest of a line, and no more. Return it without its end."""
    while not begun.endswith(b"\r\n"):
        if len(begun) >= LINE_BYTES_MAX:
            raise ProxyHeaderError(f"the header of version 1 has more than {LINE_BYTES_MAX} bytes")
        begun += await _exactly(stream, 1)
    return begun[:-2]


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    """Read no more than the header: the bytes behind it are the client's, perhaps of a TLS handshake."""
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise ProxyHeaderError("the connection ended before the header did")
        data += more
    return data
