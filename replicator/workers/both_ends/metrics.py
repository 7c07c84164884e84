"""The metrics of doors' processes, added to those of the core: both ends.

A door counts in a registry of its own, and tells the core every second what has changed. What a door had counted
stays in the sums when it ends, but for gauges, which tell what there is now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

import trio
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.samples import Sample

from replicator.workers.channel import Channel

EVERY_S = 1.0

Labels: TypeAlias = tuple[tuple[str, str], ...]
SampleName: TypeAlias = tuple[str, str, Labels, bool]
"""The names of a family and of a sample in it, the sample's labels, and whether it is a gauge."""


async def tell_metrics(registry: CollectorRegistry, channel: Channel) -> None:
    """Tell the core what a registry counts, until cancelled."""
    told: dict[SampleName, float] = {}
    while True:
        await trio.sleep(EVERY_S)
        counted = {
            (family.name, sample.name, tuple(sample.labels.items()), family.type == "gauge"): sample.value
            for family in registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        rises = [(*name, value - told.get(name, 0.0)) for name, value in counted.items() if value != told.get(name, 0)]
        if rises:
            channel.tell("metrics", rises)
        told = counted


class DoorMetrics(CollectorRegistry):
    """A view of the core's registry, with what the doors have counted added. `has_doors`: some are configured."""

    def __init__(self, registry: CollectorRegistry, *, has_doors: bool = True) -> None:
        super().__init__()
        self._core = registry
        self._has_doors = has_doors
        self._counted: dict[str, dict[tuple[str, Labels], float]] = {}
        self._gauges: dict[int, dict[tuple[str, str, Labels], float]] = {}  # of each process that runs, by its id
        self.pids: dict[int, int] = {}  # of the processes that accept connections, by the door's number
        self.retiring = 0  # processes that accept no more, and serve the connections that they have
        self.restarts = 0  # starts of a process after one that had ended by itself

    def add(self, pid: int, rises: tuple[tuple[str, str, Labels, bool, float], ...]) -> None:
        """Add what a door's process tells."""
        for family, sample, labels, is_gauge, rise in rises:
            self._rise(family, sample, labels, rise)
            if is_gauge:
                gauges, key = self._gauges.setdefault(pid, {}), (family, sample, labels)
                gauges[key] = gauges.get(key, 0.0) + rise

    def forget(self, pid: int) -> None:
        """Take away the gauges of a process that has ended."""
        for (family, sample, labels), value in self._gauges.pop(pid, {}).items():
            self._rise(family, sample, labels, -value)

    def _rise(self, family: str, sample: str, labels: Labels, rise: float) -> None:
        counted = self._counted.setdefault(family, {})
        counted[sample, labels] = counted.get((sample, labels), 0.0) + rise

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, and those of the doors' processes."""
        for family in self._core.collect():
            counted = dict(self._counted.get(family.name, {}))
            family.samples = [
                sample._replace(value=sample.value + counted.pop((sample.name, tuple(sample.labels.items())), 0.0))
                for sample in family.samples
            ]
            family.samples += [Sample(name, dict(labels), value) for (name, labels), value in counted.items()]
            yield family
        if self._has_doors:
            yield from _of_processes(self.pids)
            restarts = "Starts of a door's process after one that had ended by itself."
            yield CounterMetricFamily("replicator_door_restarts", restarts, self.restarts)
            retiring = "Doors' processes that accept no more connections, and end with the last one that they have."
            yield GaugeMetricFamily("replicator_doors_retiring", retiring, self.retiring)


def _of_processes(pids: Mapping[int, int]) -> Iterator[Metric]:
    """Yield what the system tells of the doors' processes: without a value elsewhere than on Linux."""
    cpu = CounterMetricFamily("replicator_door_cpu_seconds", "CPU time of a door's process.", labels=["door"])
    memory = GaugeMetricFamily(
        "replicator_door_resident_memory_bytes", "Resident memory of a door's process.", labels=["door"]
    )
    for number, pid in pids.items():
        for family in ProcessCollector(pid=partial(int, pid), registry=CollectorRegistry()).collect():
            for sample in family.samples:
                if sample.name == "process_cpu_seconds_total":
                    cpu.add_metric([str(number)], sample.value)
                elif sample.name == "process_resident_memory_bytes":
                    memory.add_metric([str(number)], sample.value)
    yield from (cpu, memory)
