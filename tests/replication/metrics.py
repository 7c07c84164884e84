"""Values of a node's metrics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from prometheus_client import CollectorRegistry

from tests.replication.cluster import HEARTBEAT_S, Node


def value(registry: CollectorRegistry, name: str, peer: str | None = None, **labels: str) -> float | None:
    """Return the value of a series; None: there is none. A label `for_` stands for `for`."""
    given = {key.rstrip("_"): text for key, text in labels.items()} | ({"peer": peer} if peer else {})
    return registry.get_sample_value(f"replicator_{name}", given)


def known(registry: CollectorRegistry, name: str, peer: str | None = None, **labels: str) -> float:
    """Return the value of a series that is there."""
    found = value(registry, name, peer, **labels)
    assert found is not None, f"there is no {name} {peer or ''} {labels or ''}"
    return found


@asynccontextmanager
async def refreshed(*nodes: Node) -> AsyncIterator[None]:
    """Keep the metrics of these nodes up to date within the block."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.metrics.run, HEARTBEAT_S)
        yield
        nursery.cancel_scope.cancel()
