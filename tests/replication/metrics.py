"""Values of a node's metrics."""

from prometheus_client import CollectorRegistry


def value(registry: CollectorRegistry, name: str, peer: str | None = None) -> float | None:
    return registry.get_sample_value(f"replicator_{name}", {"peer": peer} if peer else {})
