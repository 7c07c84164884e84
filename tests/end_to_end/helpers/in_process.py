"""Nodes that run in the test's process, behind real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from replicator.config import Config
from replicator.node import run_node


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in sockets]
    for server in sockets:
        server.close()
    return ports


@asynccontextmanager
async def running(nodes: list[Config]) -> AsyncIterator[None]:
    """Run these nodes until the block ends."""
    async with trio.open_nursery() as nursery:
        for config in nodes:
            ready = trio.Event()
            nursery.start_soon(partial(run_node, config, ready=ready.set))
            await ready.wait()
        yield
        nursery.cancel_scope.cancel()
