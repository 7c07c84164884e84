from __future__ import annotations

import socket
import sys

import pytest
import trio

from replicator.config import Address
from replicator.network.streams import KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system's own times count elsewhere")


async def test_clients_that_have_vanished_are_noticed_by_tcp() -> None:
    [listener] = await listen(Address("127.0.0.1", 0))
    async with listener, await trio.open_tcp_stream(*listener.socket.getsockname()), await listener.accept() as served:
        keeps = served.socket
        assert keeps.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [
            keeps.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ] == [KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES]


async def test_an_address_of_another_machine_is_named_as_such() -> None:
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:4420: .*; this machine has no such address"):
        await listen(Address("192.0.2.1", 4420))
