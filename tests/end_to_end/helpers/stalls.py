"""Times for which a node's event loop was held, by the node's own metrics."""

from __future__ import annotations

import http.client
from typing import NamedTuple

from benchmarks.clusters.cluster import Node
from benchmarks.clusters.proxy import HOST

SERIES = "replicator_event_loop_stall_cpu_seconds"
"""The processor's time: a busy machine makes wall times long, whatever the node does."""


class Stalls(NamedTuple):
    """Times of more than 5 ms for which the loop was held: how many up to each limit in seconds, and their sum."""

    up_to: dict[float, float]
    total_s: float

    def since(self, before: Stalls) -> Stalls:
        """Return those that came after `before`."""
        up_to = {limit: count - before.up_to[limit] for limit, count in self.up_to.items()}
        return Stalls(up_to, self.total_s - before.total_s)

    @property
    def times(self) -> float:
        return self.up_to[float("inf")]

    def longer_than(self, limit_s: float) -> float:
        """Return how many were longer than a limit, which must be one of the metric's."""
        return self.times - self.up_to[limit_s]

    @property
    def longest_below_s(self) -> float:
        return min(limit for limit, count in self.up_to.items() if count == self.times)


def stalls(node: Node) -> Stalls:
    """Return all since the node's start."""
    connection = http.client.HTTPConnection(HOST, node.ports["http"], timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    series = dict(line.split(" ") for line in lines if line.startswith(SERIES))
    up_to = {float(name.split('"')[1]): float(count) for name, count in series.items() if "_bucket" in name}
    return Stalls(up_to, float(series[f"{SERIES}_sum"]))
