"""Metrics of doors, as the core shows them."""

from __future__ import annotations

import os
from functools import partial

import trio
import trio.testing
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from replicator.runtime.metrics import ImapMetrics, LmtpMetrics, RefusalMetrics, exposition
from replicator.workers.both_ends.metrics import EVERY_S, DoorMetrics, tell_metrics
from tests.one_door import channels


def shown(metrics: DoorMetrics) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(exposition(metrics).decode())
    return {(sample.name, "/".join(sample.labels.values())): sample.value for one in families for sample in one.samples}


async def test_doors_add_to_what_the_core_counts_and_leave_it_when_they_end(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
) -> None:
    registry = CollectorRegistry()
    RefusalMetrics(registry).refused("http", "http_connections")
    LmtpMetrics(registry).delivered([250], 0.003)
    metrics = DoorMetrics(registry)
    for number in range(2):
        of_door = CollectorRegistry()
        async with channels() as (core, door), trio.open_nursery() as nursery:
            core.quick_calls["metrics"] = partial(metrics.add, number)
            nursery.start_soon(tell_metrics, of_door, door)
            counted = LmtpMetrics(of_door)
            for _ in range(3):
                counted.delivered([250, 550], 0.03)
                await trio.sleep(EVERY_S)
            await trio.sleep(2 * EVERY_S)
            nursery.cancel_scope.cancel()
    found = shown(metrics)
    assert found["replicator_lmtp_deliveries_total", "2xx"] == 7
    assert found["replicator_lmtp_deliveries_total", "5xx"] == 6
    assert found["replicator_lmtp_delivery_seconds_count", ""] == 7
    assert found["replicator_lmtp_delivery_seconds_bucket", "0.005"] == 1
    assert found["replicator_lmtp_delivery_seconds_bucket", "0.05"] == 7
    assert found["replicator_refusals_total", "http/http_connections"] == 1
    assert not any(name.startswith(("replicator_door_cpu", "replicator_door_resident")) for name, _ in found)
    assert found["replicator_door_restarts_total", ""] == found["replicator_doors_retiring", ""] == 0
    assert not any(name.startswith("replicator_door") for name, _ in shown(DoorMetrics(registry, has_doors=False)))


async def test_what_there_is_now_at_a_door_ends_with_it(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
) -> None:
    registry = CollectorRegistry()
    ImapMetrics(registry).connections.inc()
    metrics, of_door = DoorMetrics(registry), CollectorRegistry()
    async with channels() as (core, door), trio.open_nursery() as nursery:
        core.quick_calls["metrics"] = partial(metrics.add, 1)
        nursery.start_soon(tell_metrics, of_door, door)
        at_door = ImapMetrics(of_door)
        at_door.login(ok=True)
        for change in (3, -1):
            at_door.connections.inc(change)
            await trio.sleep(2 * EVERY_S)
        assert shown(metrics)["replicator_imap_connections", ""] == 1 + 2
        nursery.cancel_scope.cancel()
    metrics.forget(1)
    found = shown(metrics)
    assert found["replicator_imap_connections", ""] == 1
    assert found["replicator_imap_logins_total", "ok"] == 1


def test_processes_of_doors_are_shown_while_they_run() -> None:
    metrics = DoorMetrics(CollectorRegistry())
    metrics.pids[2] = os.getpid()
    metrics.restarts, metrics.retiring = 3, 1
    found = shown(metrics)
    assert found["replicator_door_restarts_total", ""] == 3
    assert found["replicator_doors_retiring", ""] == 1
    assert found["replicator_door_cpu_seconds_total", "2"] > 0
    assert found["replicator_door_resident_memory_bytes", "2"] > 1 << 20
