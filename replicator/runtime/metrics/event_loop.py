"""Metrics of the event loop."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

STALL_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Upper bounds in seconds: from what nobody notices to the time after which peers give a node up."""


class LoopMetrics:
    """Metrics of the event loop."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._seconds = Histogram(
            "replicator_event_loop_stall_seconds",
            "Times of more than 5 ms for which one task held the event loop, so that nothing else of the node went on.",
            buckets=STALL_BUCKETS_S,
            registry=registry,
        )
        self._cpu_seconds = Histogram(
            "replicator_event_loop_stall_cpu_seconds",
            "Time of the processor that the same work took; less on a machine that is busy with other things.",
            buckets=STALL_BUCKETS_S,
            registry=registry,
        )

    def held(self, seconds: float, cpu_seconds: float) -> None:
        """Count a time for which a task held the loop."""
        self._seconds.observe(seconds)
        self._cpu_seconds.observe(cpu_seconds)
