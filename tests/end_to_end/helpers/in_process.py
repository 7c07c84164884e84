"""Nodes that run in the test's process, behind real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from benchmarks.clusters.cluster import reserve_ports
from replicator.config import Config
from replicator.http.services import NodeEnding
from replicator.node import run_node

_reserved: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens, and which nobody else is given until this process ends.

    Their sockets stay bound, so the ports are no source ports; as they do not listen, a node may bind them too.
    """
    sockets = reserve_ports(count)
    _reserved.extend(sockets)
    return [int(reserved.getsockname()[1]) for reserved in sockets]


@asynccontextmanager
async def running(nodes: list[Config], ending: NodeEnding | None = None) -> AsyncIterator[None]:
    """Run these nodes until the block ends. `ending`: what operators begin who end one over HTTP."""
    async with trio.open_nursery() as nursery:
        for config in nodes:
            ready = trio.Event()
            nursery.start_soon(partial(run_node, config, ready=ready.set, ending=ending))
            await ready.wait()
        yield
        nursery.cancel_scope.cancel()
