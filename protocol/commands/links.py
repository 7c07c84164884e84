"""Commands about links between nodes: identity, heartbeats and link states (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hello:
    """First command of either side.

    Refused for a wrong cluster, the same SID, another version, or clocks that are more than 5 minutes apart.
    """

    version: int
    sid: str
    origin: str
    cluster: str
    capabilities: tuple[str, ...]
    clock_ms: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat; its `Done` proves that the link is alive and measures the round trip."""


@dataclass(frozen=True, slots=True)
class LinkAdvert:
    """A statement of one run of a node about itself and its links. The highest `sequence` of a SID is the valid one."""

    origin: str
    priority: int
    sequence: int
    neighbours: tuple[tuple[str, int], ...]  # (SID, round trip in microseconds) of the links that are up

    @property
    def sid(self) -> str:
        """SID of the advertising node."""
        return self.origin.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Links:
    """Link-state advertisements, flooded (design section 5). No reply."""

    adverts: tuple[LinkAdvert, ...]
