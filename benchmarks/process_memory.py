"""How much memory a process takes at the most while something passes: the kernel keeps count (proc(5), VmHWM)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.cluster import Node

RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs: the peak is what it is now


class PeakMemory:
    """Of one process, from now on."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")
        (self._directory / "clear_refs").write_text(RESET_PEAK, encoding="ascii")
        self.before_bytes = self._status("VmRSS")

    @property
    def grown_bytes(self) -> int:
        """How much more it was at most than in the beginning."""
        return self._status("VmHWM") - self.before_bytes

    def _status(self, name: str) -> int:
        lines = (self._directory / "status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def watch(nodes: Iterable[Node]) -> dict[str, PeakMemory]:
    """By SID."""
    return {node.sid: PeakMemory(node.pid) for node in nodes}
