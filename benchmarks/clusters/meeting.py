"""Two nodes whose line is cut: measure time and bytes from the moment it is mended until they show the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Cluster
from benchmarks.clusters.proxy import BOTH

LOOK_EVERY_S = 0.03  # a look costs the node some milliseconds
DIALLED_WITHIN_S = 20.0

Status = Mapping[str, object]


@dataclass(frozen=True)
class Met:
    """Cost from the first byte on the line until both nodes show the same: seconds, and bytes both ways."""

    seconds: float
    size_bytes: int


class Meeting:
    """A meeting of dc1, which makes no changes, and dc2.

    The line is cut until `meet`; the clock starts at its first byte.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._line = cluster.link("dc1", "dc2")
        self._near, self._far = cluster.node("dc1"), cluster.node("dc2")
        self._line.cut()
        self._began, self._carried = 0.0, 0

    def meet(self) -> None:
        """Mend the line, and return when one of the nodes has dialled."""
        self._carried = self._bytes()
        mended = time.perf_counter()
        self._line.mend()
        while self._bytes() == self._carried:
            if time.perf_counter() - mended > DIALLED_WITHIN_S:
                raise MeasurementError(f"nobody dials:\n{self._near.log_tail()}\n{self._far.log_tail()}")
            time.sleep(0.001)
        self._began = time.perf_counter()

    def until_equal(self, within_s: float) -> Met:
        """Wait until dc2 shows what dc1 shows."""
        wanted = self._near.get("/api/v1/status")["digest"]
        return self.until(lambda status: status["digest"] == wanted and not status["waiting_entries"], within_s)

    def until(self, true_of: Callable[[Status], bool], within_s: float) -> Met:
        """Wait until `true_of` accepts dc2's status."""
        while not true_of(status := self._far.get("/api/v1/status")):
            if time.perf_counter() - self._began > within_s:
                raise MeasurementError(f"not done in {within_s:.0f} s: {status}\n{self._far.log_tail()}")
            time.sleep(LOOK_EVERY_S)
        return Met(time.perf_counter() - self._began, self._bytes() - self._carried)

    def _bytes(self) -> int:
        return sum(self._line.carried_bytes(direction) for direction in BOTH)
