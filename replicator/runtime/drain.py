"""The drain of a node: before it is stopped for maintenance, clients are sent to other nodes.

The node serves whoever comes, as before: a site may have no balancer. But it calls itself unhealthy, so that balancers
choose others for new clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from replicator.runtime.environment import wall_clock_ms


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """The state of a drain. `since_ms` None: the node is not drained."""

    since_ms: int | None


class Drain:
    """The drain of this node, until its process ends. Belongs to the event loop."""

    def __init__(self, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._since_ms: int | None = None

    @property
    def status(self) -> DrainStatus:
        """The state now."""
        return DrainStatus(self._since_ms)

    def begin(self) -> None:
        """Begin, unless the node is drained already."""
        if self._since_ms is None:
            self._since_ms = self._clock_ms()

    def end(self) -> None:
        """Let the node be healthy again."""
        self._since_ms = None

    def problems(self) -> Sequence[str]:
        """Return why the node is not healthy."""
        if self._since_ms is None:
            return ()
        since = datetime.fromtimestamp(self._since_ms / 1000, UTC).isoformat(" ", "seconds")
        return (f"an operator drains the node, since {since}; `replicator drain --undo` ends that",)
