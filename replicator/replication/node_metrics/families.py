"""The creation of metrics in one registry, with the prefix that all of a node's metrics have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Total:
    """A counter that follows numbers which rise elsewhere, one for each value of its labels."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._told: dict[tuple[str, ...], int] = {}

    def follow(self, number: int, *labels: str) -> None:
        """Show that the number has risen to this. If it has fallen, it counts anew, as for a peer that was replaced."""
        child = self._counter.labels(*labels) if labels else self._counter
        told = self._told.get(labels, 0)
        child.inc(number - told if number >= told else number)
        self._told[labels] = number

    def forget(self, *labels: str) -> None:
        """Show no number under these labels any more."""
        if self._told.pop(labels, None) is not None:
            self._counter.remove(*labels)


class Families:
    """The maker of metrics in one registry. Names follow Prometheus: base units, counters end in `_total`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Return a new gauge."""
        return Gauge(f"replicator_{name}", text, labels, registry=self.registry)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Return a new counter."""
        return Counter(f"replicator_{name}", text, labels, registry=self.registry)

    def total(self, name: str, text: str, *labels: str) -> Total:
        """Return a new counter of what is counted elsewhere."""
        return Total(self.counter(name, text, *labels))

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        """Return a new histogram with these upper bounds."""
        return Histogram(f"replicator_{name}", text, buckets=buckets, registry=self.registry)


def or_nan(value: float | None) -> float:
    """Return the value, or NaN, which Prometheus takes for unknown: for nothing that an alert has to see."""
    return math.nan if value is None else value
