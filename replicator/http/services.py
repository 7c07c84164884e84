"""What the HTTP door needs of the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry

from replicator.environment import wall_clock_ms
from replicator.mailstore import Folder, MailStore
from replicator.metrics import HttpMetrics
from replicator.status import CheckpointStatus, MailboxStatus, NodeStatus
from replicator.tasks import TaskName, TaskOptions, TaskStatus
from replicator.users import UserNames


class NodeReport(Protocol):
    """What the node says about itself."""

    async def node_status(self) -> NodeStatus:
        """The node, now."""
        ...

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        """The mailboxes of one user, or of all, by user and name."""
        ...

    async def has_unsaved(self) -> bool:
        """Whether anything that is shown here is in no checkpoint of this node. Reads all mailboxes' heads."""
        ...

    async def healthy(self) -> Sequence[str]:
        """Why mail cannot be read or changed here, one line each; empty: it can."""
        ...


class MasterControl(Protocol):
    """Who masters a folder."""

    async def master_of(self, folder: Folder) -> str | None:
        """Its master's id, as the root has it; None: this node has not had to know."""
        ...

    async def move_to(self, folder: Folder, node: str) -> None:
        """Make that node its master, whoever uses it. Raises UnavailableError."""
        ...


class TaskControl(Protocol):
    """What the node does that takes long; one thing at a time."""

    def start(self, options: TaskOptions) -> TaskStatus | None:
        """Begin it; None if a task of any kind runs already."""
        ...

    def running(self) -> TaskName | None:
        """What runs."""
        ...

    def status(self, name: TaskName) -> TaskStatus | None:
        """The present or the last one; None: none since the node's start."""
        ...

    async def wait(self, name: TaskName) -> None:
        """Return when none of this kind runs."""
        ...

    def cancel(self, name: TaskName) -> None:
        """End it soon."""
        ...


class CheckpointControl(Protocol):
    """The node's checkpoints."""

    async def checkpoint_now(self) -> CheckpointStatus:
        """Write what has changed; how it stands then. Cancelled, it goes on. Raises UnavailableError."""
        ...

    def checkpoint_status(self) -> CheckpointStatus:
        """How it stands now."""
        ...


@dataclass(frozen=True, slots=True)
class HttpServices:
    """What handlers may use. `registry` holds the node's own metrics, never the library's global ones."""

    sid: str
    mail: MailStore
    status: NodeReport
    users: UserNames
    registry: CollectorRegistry
    masters: MasterControl
    checkpoints: CheckpointControl
    tasks: TaskControl
    metrics: HttpMetrics = field(default_factory=HttpMetrics)
    clock_ms: Callable[[], int] = wall_clock_ms
