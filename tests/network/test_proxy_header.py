"""Headers of the PROXY protocol, sent to listeners over real sockets."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Network, ip_address, ip_network

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from replicator.config import ProxyConfig
from replicator.network.proxy_header import (
    FIXED,
    HEADER_S,
    REST_BYTES_MAX,
    SIGNATURE,
    Client,
    ProxyHeaderError,
    behind_proxies,
    client_of,
    rest_bytes,
)

LOOPBACK = ip_network("127.0.0.0/8")
ELSEWHERE = ip_network("192.0.2.0/24")


def header(source: str, *, command: int = 0x21, kind: int | None = None, extensions: bytes = b"") -> bytes:
    """Return a header that names a client."""
    client = ip_address(source)
    target = ip_address("203.0.113.1" if client.version == 4 else "2001:db8::1")
    kind = kind if kind is not None else 0x11 if client.version == 4 else 0x21
    rest = client.packed + target.packed + struct.pack("!HH", 50_000, 993) + extensions
    return SIGNATURE + struct.pack("!BBH", command, kind, len(rest)) + rest


def parsed(data: bytes) -> str | None:
    fixed, rest = data[: FIXED.size], data[FIXED.size :]
    return client_of(fixed, rest[: rest_bytes(fixed)])


@pytest.mark.parametrize("source", ["192.0.2.7", "2001:db8::7"])
def test_client_is_named(source: str) -> None:
    assert parsed(header(source)) == source
    assert parsed(header(source, extensions=b"\x04\0\x03abc")) == source


@pytest.mark.parametrize(("command", "kind"), [(0x20, 0x11), (0x20, 0), (0x21, 0), (0x21, 0x31), (0x21, 0x12)])
def test_header_may_name_no_client(command: int, kind: int) -> None:
    assert parsed(header("192.0.2.7", command=command, kind=kind)) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a LOGIN alice secret\r\n", "does not begin"),
        (header("192.0.2.7", command=0x11), "0x11"),
        (header("192.0.2.7", command=0x22), "0x22"),
        (header("192.0.2.7", extensions=b"x" * REST_BYTES_MAX), "at most 4096"),
        (header("192.0.2.7", kind=0x21), "ends within an address"),
        (SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 11) + b"x" * 11, "ends within an address"),
    ],
)
def test_malformed_header_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProxyHeaderError, match=why):
        parsed(data)


@given(st.binary(min_size=FIXED.size, max_size=80) | st.binary(min_size=4, max_size=60).map(SIGNATURE.__add__))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        client = parsed(data)
    except ProxyHeaderError:
        return
    assert client is None or str(ip_address(client)) == client


class Door:
    """A listener that answers each connection with the client's address and what came behind the header."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def answer(self, *pieces: bytes) -> bytes:
        async with await self.connect() as stream:
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    await stream.send_all(piece)
                await stream.send_eof()
                return b"".join([bytes(data) async for data in stream])
            except trio.BrokenResourceError:  # closed with unread input
                return b""


async def tell(stream: trio.SocketStream, client: Client) -> None:
    said = b"".join([bytes(data) async for data in stream])
    await stream.send_all(f"{client.address}{' securely' * client.secure} ".encode() + said)
    await stream.aclose()


@pytest.fixture(params=[LOOPBACK])
async def door(nursery: trio.Nursery, request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    handler = behind_proxies(tell, ProxyConfig((request.param,)))
    [listener] = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
    yield Door(listener.socket.getsockname()[1])
    nursery.cancel_scope.cancel()


async def test_header_of_a_trusted_proxy_is_believed(door: Door) -> None:
    assert await door.answer(header("192.0.2.7") + b"a NOOP\r\n") == b"192.0.2.7 a NOOP\r\n"
    whole = header("2001:db8::7", extensions=b"x" * 100) + b"a"
    assert await door.answer(*(whole[at : at + 1] for at in range(len(whole)))) == b"2001:db8::7 a"


LINE = b"PROXY TCP4 192.0.2.7 203.0.113.1 50000 993\r\n"


async def test_line_of_a_trusted_proxy_is_believed(door: Door) -> None:
    assert await door.answer(LINE + b"a NOOP\r\n") == b"192.0.2.7 a NOOP\r\n"
    assert await door.answer(b"PROXY TCP6 2001:db8::7 2001:db8::1 1 993\r\n") == b"2001:db8::7 "
    assert await door.answer(*(LINE[at : at + 1] for at in range(len(LINE))), b"a") == b"192.0.2.7 a"
    assert await door.answer(b"PROXY UNKNOWN\r\na") == b"127.0.0.1 a"
    assert await door.answer(b"PROXY UNKNOWN what ever\r\n") == b"127.0.0.1 "


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"PROXY TCP4 mail.example 203.0.113.1 50000 993\r\n", "no IP address"),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 50000\r\n", "two addresses and ports"),
        (b"PROXY UDP4 192.0.2.7 203.0.113.1 50000 993\r\n", "two addresses and ports"),
        (b"PROXY UNKNOWN" + 100 * b"x" + b"\r\n", "more than 107 bytes"),
        (LINE[:-1], "ended before"),
    ],
)
async def test_malformed_line_is_refused(door: Door, line: bytes, why: str, caplog: pytest.LogCaptureFixture) -> None:
    assert await door.answer(line) == b""
    assert why in caplog.text


@pytest.mark.parametrize(
    ("private", "answer"), [(LOOPBACK, b"192.0.2.7 securely a"), (ELSEWHERE, b"192.0.2.7 a")], ids=["it", "another"]
)
async def test_clients_of_a_private_proxy_count_as_secure(
    nursery: trio.Nursery, private: IPv4Network, answer: bytes
) -> None:
    handler = behind_proxies(tell, ProxyConfig((LOOPBACK,), (private,)))
    [listener] = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
    assert await Door(listener.socket.getsockname()[1]).answer(LINE + b"a") == answer
    nursery.cancel_scope.cancel()


async def test_own_connections_of_a_proxy_and_loopback_clients_count_as_the_proxy(door: Door) -> None:
    assert await door.answer(header("192.0.2.7", command=0x20)) == b"127.0.0.1 "
    for source in ("127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert await door.answer(header(source)) == b"127.0.0.1 "


@pytest.mark.parametrize("data", [b"a LOGIN alice secret\r\n", b"", header("192.0.2.7")[:-1]])
async def test_trusted_proxy_without_a_whole_header_is_refused_with_a_log_line(
    door: Door, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await door.answer(data) == b""
    [line] = caplog.messages
    assert line.startswith("refused a connection from a trusted proxy")
    assert "proxy=127.0.0.1" in line


@pytest.mark.parametrize("door", [ELSEWHERE], indirect=True)
async def test_header_of_anybody_else_is_never_believed(door: Door) -> None:
    assert await door.answer(header("192.0.2.7") + b"x") == b"127.0.0.1 " + header("192.0.2.7") + b"x"


async def test_silent_proxy_is_given_up(
    door: Door, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    began = autojump_clock.current_time()
    async with await door.connect() as stream:
        await stream.send_all(header("192.0.2.7")[:20])
        with suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""
    assert HEADER_S <= autojump_clock.current_time() - began < 2 * HEADER_S
    assert "no header came in time" in caplog.text
