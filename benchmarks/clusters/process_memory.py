"""Peak memory of a process during an operation, as counted by the kernel (proc(5), VmHWM)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.clusters.cluster import Node

RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs: set the peak to the present size


class PeakMemory:
    """Peak memory of one process, from now on."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")
        (self._directory / "clear_refs").write_text(RESET_PEAK, encoding="ascii")
        self.before_bytes = self._status("VmRSS")

    @property
    def grown_bytes(self) -> int:
        """Bytes by which the peak exceeds the size at the beginning."""
        return self._status("VmHWM") - self.before_bytes

    def _status(self, name: str) -> int:
        lines = (self._directory / "status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def watch(nodes: Iterable[Node]) -> dict[str, PeakMemory]:
    """Watch the nodes' processes, by SID."""
    return {node.sid: PeakMemory(node.pid) for node in nodes}
