"""What the HTTP door needs of the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry

from replicator.environment import wall_clock_ms
from replicator.mailstore import Folder, MailStore
from replicator.metrics import HttpMetrics
from replicator.status import CheckStatus, MailboxStatus, NodeStatus, TaskName
from replicator.users import UserNames


class NodeReport(Protocol):
    """What the node says about itself."""

    async def node_status(self) -> NodeStatus:
        """The node, now."""
        ...

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        """The mailboxes of one user, or of all, by user and name."""
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


class CheckControl(Protocol):
    """The node's checks and scrubs, of which one runs at a time."""

    def start(self, name: TaskName, *, repair: bool, rate: int | None) -> CheckStatus | None:
        """Begin one; None if one runs already. `rate`: rows a second; None: as fast as it goes."""
        ...

    def status(self, name: TaskName) -> CheckStatus | None:
        """The present or the last one; None: none since the node's start."""
        ...

    async def wait(self, name: TaskName) -> None:
        """Return when none of this kind runs."""
        ...

    def cancel(self, name: TaskName) -> None:
        """End it soon."""
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
    checks: CheckControl
    metrics: HttpMetrics = field(default_factory=HttpMetrics)
    clock_ms: Callable[[], int] = wall_clock_ms
