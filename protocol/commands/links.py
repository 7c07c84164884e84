"""Links between nodes: who is there, who hears whom (design section 5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hello:
    """First command of either side. Refused: wrong cluster, same SID, other version, clocks over 5 minutes apart."""

    version: int
    sid: str
    origin: str
    cluster: str
    capabilities: tuple[str, ...]
    clock_ms: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat; its `Done` proves that the link lives and measures it."""


@dataclass(frozen=True, slots=True)
class LinkAdvert:
    """What one run of a node says of itself and its links. The highest `sequence` of a SID is the valid one."""

    origin: str
    priority: int
    sequence: int
    neighbours: tuple[tuple[str, int], ...]  # (SID, round trip in microseconds), those that are up

    @property
    def sid(self) -> str:
        """The node's."""
        return self.origin.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Links:
    """Link-state advertisements, flooded (design section 5). No reply."""

    adverts: tuple[LinkAdvert, ...]
