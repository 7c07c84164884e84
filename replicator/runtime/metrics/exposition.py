"""The output of all metrics of a node."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest


def exposition(registry: CollectorRegistry) -> bytes:
    """Return all metrics in Prometheus's text format, without `_created` series, which only repeat the start time."""
    return generate_latest(_WithoutCreated(registry))


class _WithoutCreated(CollectorRegistry):
    """View of another registry, without `_created` series. The library's setting would affect the whole process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families to be written."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
