"""Connections at a real node's peer door that never become links."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme

from protocol.framing import Framer
from protocol.units import KIB, MIB
from replicator.config import Address, Config, LimitsConfig, ListenConfig, PeerConfig, default_config
from tests.end_to_end.helpers.certificates import certificate
from tests.end_to_end.helpers.in_process import free_ports, running

STRANGERS = 20
LITERAL = b"a1 HELLO {60000000+}\r\n"
HELLO_BYTES = LimitsConfig().peer_hello_bytes


def node_of_two(directory: Path) -> Config:
    peer, http = (Address("127.0.0.1", port) for port in free_ports(2))
    other = PeerConfig("dc2", Address("127.0.0.1", 1))
    return default_config("dc1", directory, listen=ListenConfig(peer=peer, http=http), peers=(other,))


def held_bytes() -> int:
    """Return the bytes that all framers of this process hold."""
    return sum(len(framer._buffer) for framer in gc.get_objects() if isinstance(framer, Framer))


async def refusals(config: Config) -> str:
    """Return the node's metric of what its peer door has refused."""
    assert config.listen.http is not None
    stream = await trio.open_tcp_stream(*config.listen.http)
    async with stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b""
        while data := await stream.receive_some():
            text += data
    return "\n".join(line for line in text.decode().splitlines() if line.startswith("replicator_refusals_total{"))


async def test_strangers_cannot_make_a_node_hold_more_than_a_hello_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, ended, most = node_of_two(tmp_path), 0, 0
    assert isinstance(config.listen.peer, Address)

    async def pour(address: Address) -> None:
        """Send the beginning of a large literal, as fast as the node takes it, until it ends the connection."""
        nonlocal ended
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            try:
                await stream.send_all(LITERAL)
                for _ in range(2 * MIB // KIB):
                    await stream.send_all(bytes(KIB))
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        ended += 1

    with trio.fail_after(60):
        async with running([config]):
            async with trio.open_nursery() as nursery:
                for _ in range(STRANGERS):
                    nursery.start_soon(pour, config.listen.peer)
                while ended < STRANGERS:
                    most = max(most, held_bytes())
                    await trio.sleep(0.005)
            assert most <= STRANGERS * HELLO_BYTES
            assert f'{{door="peer",limit="peer_hello_bytes"}} {STRANGERS}.0' in await refusals(config)
    assert f"more than {HELLO_BYTES} bytes came before a HELLO that is accepted" in caplog.text


async def test_hello_may_have_as_many_bytes_as_a_stranger_may_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = node_of_two(tmp_path)
    assert isinstance(config.listen.peer, Address)
    with trio.fail_after(60):
        async with running([config]):
            stream = await trio.open_tcp_stream(*config.listen.peer)
            async with stream:
                await stream.send_all(b"a1 NONSENSE ".ljust(HELLO_BYTES - 2) + b"\r\n")
                while await stream.receive_some():
                    pass
            assert not await refusals(config)
    assert "'a1 NONSENSE'" in caplog.text


@pytest.mark.parametrize("secured", [False, True])
async def test_silent_connections_from_one_address_drop_each_other_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, secured: bool
) -> None:
    config = node_of_two(tmp_path)
    if secured:
        config = replace(config, tls=certificate(trustme.CA(), tmp_path, "dc1"))
    assert isinstance(config.listen.peer, Address)
    address, flood = config.listen.peer, LimitsConfig().peer_strangers + STRANGERS
    with trio.fail_after(60):
        async with running([config]), AsyncExitStack() as held:
            other = await trio.open_tcp_stream(*address, local_address="127.0.0.2")
            await held.enter_async_context(other)
            for _ in range(flood):
                stream = await trio.open_tcp_stream(*address)
                await held.enter_async_context(stream)
            dropped = flood - LimitsConfig().peer_strangers_per_address
            refused = ""
            while f'limit="peer_strangers_per_address"}} {dropped}.0' not in refused:
                refused = await refusals(config)
            await other.send_all(b"a1 NONSENSE\r\n")
            while await other.receive_some():
                pass
            assert ("TLS with 127.0.0.2: " if secured else "'a1 NONSENSE'") in caplog.text
