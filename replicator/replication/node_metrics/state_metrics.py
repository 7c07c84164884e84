"""Metrics of the node as a whole: its name, health, durability, certificates, users and tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import Info

from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics.families import Families
from replicator.status import CertificateStatus
from replicator.tasks import TaskName, TaskState

Users = Callable[[], tuple[int, int]]
"""A source of the number of users and the digest of their table: `UserDirectory.summary`."""

Tasks = Callable[[TaskName], TaskState | None]
"""A source of the state of the latest task of a kind: `TaskRunner.state`."""

_TASKS: tuple[TaskName, ...] = get_args(TaskName)


class StateMetrics:
    """Metrics of the whole node. `version` is the program's."""

    def __init__(
        self, families: Families, coordinator: Coordinator, *, version: str, users: Users, tasks: Tasks
    ) -> None:
        gauge = families.gauge
        self._durability = coordinator.durability
        self._users_now, self._tasks_now = users, tasks
        info = Info("replicator", "The node, its cluster and its version.", registry=families.registry)
        info.info({"sid": coordinator.sid, "cluster": coordinator.config.node.cluster, "version": version})
        self._healthy = gauge(
            "healthy", "1 if `/healthz` answers 200, 0 if it answers 503: the node's disk was tried within 30 seconds."
        )
        self._serving = gauge(
            "serving", "1 if this node serves clients, 0 while it turns them away: `status` says why."
        )
        self._wanted = gauge("copies_wanted", "Nodes that are to have each change on disk: `durability.copies`.")
        self._copies = gauge("copies_reachable", "Nodes that can take changes to disk now, including this one.")
        self._certificate_expires = gauge(
            "certificate_expires_timestamp_seconds",
            "Time at which the certificate in this file expires, in seconds since the epoch.",
            "file",
        )
        self._users = gauge("users", "Users in the passwd-file, in whichever cluster; 0 while they are unknown.")
        self._users_digest = gauge(
            "users_digest",
            "Number that is equal at nodes whose passwd-files have the same lines of users, in whichever order, and the"
            " same secret for SCRAM; 0 while the users are unknown.",
        )
        self._running = gauge(
            "task_running", "1 while a task of this kind that an operator has started runs, else 0.", "task"
        )
        self._failed = gauge("task_failed", "1 if the last task of this kind has failed, else 0.", "task")

    def refresh(self, *, healthy: bool, serving: bool, certificates: Iterable[CertificateStatus]) -> None:
        """Show the present state."""
        self._healthy.set(healthy)
        self._serving.set(serving)
        self._wanted.set(self._durability.config.copies)
        self._copies.set(self._durability.reachable)
        self._certificate_expires.clear()
        for certificate in certificates:
            self._certificate_expires.labels(certificate.file).set(certificate.expires_ms / 1000)
        users, digest = self._users_now()
        self._users.set(users)
        self._users_digest.set(digest)
        for task in _TASKS:
            state = self._tasks_now(task)
            self._running.labels(task).set(state == "running")
            self._failed.labels(task).set(state == "failed")
