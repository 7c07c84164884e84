"""Creates the job for a task's options."""

from __future__ import annotations

from collections.abc import Callable

from replicator.environment import Environment
from replicator.replication.coordinator import Coordinator
from replicator.replication.tasks.check import Check
from replicator.replication.tasks.inventory import Inventory
from replicator.replication.tasks.repair_plan import Apply
from replicator.replication.tasks.resync import Resync
from replicator.replication.tasks.runner import Job, TaskRunner
from replicator.replication.tasks.scrub import Scrub
from replicator.replication.tasks.undelete import Undelete
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
                return Check(options, store, environment, coordinator.bodies.heal, coordinator.checkpoints)
            case ScrubOptions():
                return Scrub(options, store, coordinator.bodies, coordinator.orphan_sweep)
            case ResyncOptions():
                peers = (peer.id for peer in coordinator.config.peers)
                return Resync(
                    options,
                    store=store,
                    mastership=coordinator.mastership,
                    reconciliation=coordinator.reconciliation,
                    other_texts=coordinator.body_conflicts,
                    peers=peers,
                )
            case UndeleteOptions():
                return Undelete(options, store, coordinator, environment)
            case InventoryOptions():
                return Inventory(options, store, coordinator)
            case ApplyOptions():
                return Apply(
                    options,
                    store=store,
                    mastership=coordinator.mastership,
                    reconciliation=coordinator.reconciliation,
                    other_texts=coordinator.body_conflicts,
                )

    return job_for
