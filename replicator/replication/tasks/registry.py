"""Creates the job for a task's options."""

from __future__ import annotations

from collections.abc import Callable

from replicator.replication.coordinator import Coordinator
from replicator.replication.tasks.check import CheckTask
from replicator.replication.tasks.inventory import InventoryTask
from replicator.replication.tasks.repair_plan import RepairPlanTask
from replicator.replication.tasks.resync import ResyncTask
from replicator.replication.tasks.runner import Job, TaskRunner
from replicator.replication.tasks.scrub import ScrubTask
from replicator.replication.tasks.undelete import UndeleteTask
from replicator.runtime.environment import Environment
from replicator.store.store import Store
from replicator.tasks import (
    ApplyOptions,
    CheckOptions,
    InventoryOptions,
    ResyncOptions,
    ScrubOptions,
    TaskOptions,
    UndeleteOptions,
)


def tasks_of(store: Store, coordinator: Coordinator, environment: Environment) -> TaskRunner:
    """Return the task runner of a node."""
    return TaskRunner(_jobs(store, coordinator, environment), environment.clock_ms)


def _jobs(store: Store, coordinator: Coordinator, environment: Environment) -> Callable[[TaskOptions], Job]:
    def job_for(options: TaskOptions) -> Job:
        match options:
            case CheckOptions():
                return CheckTask(options, store, environment, coordinator.bodies.heal, coordinator.checkpoints)
            case ScrubOptions():
                return ScrubTask(options, store, coordinator.bodies)
            case ResyncOptions():
                peers = (peer.id for peer in coordinator.config.peers)
                return ResyncTask(
                    options,
                    store=store,
                    mastership=coordinator.mastership,
                    reconciliation=coordinator.reconciliation,
                    other_bodies=coordinator.body_conflicts,
                    peers=peers,
                )
            case UndeleteOptions():
                return UndeleteTask(options, store, coordinator, environment)
            case InventoryOptions():
                return InventoryTask(options, store, coordinator)
            case ApplyOptions():
                return RepairPlanTask(
                    options,
                    store=store,
                    mastership=coordinator.mastership,
                    reconciliation=coordinator.reconciliation,
                    other_bodies=coordinator.body_conflicts,
                )

    return job_for
