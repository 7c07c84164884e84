"""All metrics of a node that are looked up, kept up to date by one task and a few beside it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from replicator.errors import DatabaseFailedError
from replicator.replication import timing
from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics.backlog_counts import BacklogCounts, count_at_leisure
from replicator.replication.node_metrics.body_metrics import BodyMetrics, body_figures
from replicator.replication.node_metrics.database_metrics import DatabaseMetrics, look_at_disk
from replicator.replication.node_metrics.families import Families
from replicator.replication.node_metrics.link_metrics import LinkMetrics
from replicator.replication.node_metrics.log_metrics import LogMetrics
from replicator.replication.node_metrics.mastership_metrics import MastershipMetrics
from replicator.replication.node_metrics.state_metrics import StateMetrics, Tasks, Users
from replicator.replication.node_status import StatusReporter
from replicator.runtime.environment import Environment
from replicator.store.db.transaction import Commit
from replicator.store.store import Store


class NodeMetrics:
    """The node's metrics in `registry`. Belongs to the event loop.

    Commits are counted from the beginning; everything else is shown by `run`.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        report: StatusReporter,
        coordinator: Coordinator,
        store: Store,
        environment: Environment,
        *,
        users: Users = lambda: (0, 0),
        tasks: Tasks = lambda _: None,
    ) -> None:
        self._report, self._coordinator, self._store, self._environment = report, coordinator, store, environment
        families = Families(registry)
        self._links = LinkMetrics(families, coordinator.feeds)
        self._mastership = MastershipMetrics(families, coordinator)
        self._log = LogMetrics(families, coordinator, store)
        self._bodies = BodyMetrics(families, coordinator)
        self._database = DatabaseMetrics(families, coordinator, store)
        self._state = StateMetrics(families, coordinator, version=report.version, users=users, tasks=tasks)
        store.listeners.append(self._committed)

    def _committed(self, commit: Commit) -> None:
        self._log.committed(commit)
        self._database.committed(commit)

    async def run(self, interval_s: float, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the metrics up to date until cancelled.

        It has started once all of them are there, with their values or, if the database fails, without.
        """
        self._show_counts(None)
        with trio.move_on_after(timing.NODE_METRICS_START_S):
            await self._coordinator.settled_logs.remembers.wait()
        await self.refresh()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_disk)
            nursery.start_soon(self._try_disk, interval_s)
            outdated = self._coordinator.bodies.outdated_outlines
            nursery.start_soon(count_at_leisure, self._store, outdated, self._show_counts)
            task_status.started()
            while True:
                await trio.sleep(interval_s)
                await self.refresh()

    async def refresh(self) -> None:
        """Show the present state. What the database tells stays as it was while the database fails."""
        report, now_ms = self._report, self._environment.clock_ms()
        self._mastership.refresh()
        self._log.refresh(now_ms)
        self._database.refresh()
        self._state.refresh(
            healthy=report.was_healthy, serving=not report.not_serving, certificates=report.certificates()
        )
        with suppress(DatabaseFailedError):  # `healthy` says why
            self._links.refresh(await report.peer_lags(), now_ms=now_ms, started_ms=report.started_ms)
            self._bodies.refresh(await self._store.read(body_figures), now_ms)

    async def _try_disk(self, interval_s: float) -> None:
        """Find out whether the disk works, for the metric of health, even if nobody else asks."""
        while True:
            await self._report.try_disk(timing.NODE_METRICS_TRY_EVERY_S)
            await trio.sleep(interval_s)

    async def _watch_disk(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Look at the sizes of files and the room on disks. A disk that hangs holds up this task alone."""
        with trio.move_on_after(timing.NODE_METRICS_START_S):
            await self._look_at_disk()
        task_status.started()
        while True:
            await trio.sleep(timing.NODE_METRICS_COUNT_EVERY_S)
            await self._look_at_disk()

    async def _look_at_disk(self) -> None:
        look = partial(look_at_disk, self._store.path, self._database.directories)
        with suppress(OSError):  # the trial of the disk finds out why
            self._database.refresh_sizes(await self._environment.run_until_cancelled(look))

    def _show_counts(self, counts: BacklogCounts | None) -> None:
        self._log.refresh_counts(counts)
        self._bodies.refresh_counts(counts)
