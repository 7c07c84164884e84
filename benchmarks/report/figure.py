"""Figures as a table for people and as JSON, with a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Table

from replicator.store.attachments.ordering import is_ordered

COLUMNS: Mapping[str, Literal["left", "right"]] = {
    "figure": "left",
    "measured": "right",
    "floor": "right",
    "which is": "left",
    "aim": "left",
}
WIDTH = 170
"""Characters: the table has this width even if the output is no terminal."""


@dataclass(frozen=True)
class Figure:
    """One row. `detail` is for the JSON: numbers that explain the value, and other observations."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_is: str = ""
    aim: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)


def quantiles_ms(samples_s: Sequence[float]) -> dict[str, float]:
    """Return minimum, median, p95 and maximum in milliseconds of samples in seconds."""
    ordered = sorted(samples_s)
    return {
        "min_ms": ordered[0] * 1000,
        "median_ms": statistics.median(ordered) * 1000,
        "p95_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1000,
        "max_ms": ordered[-1] * 1000,
    }


def machine(directory: Path) -> dict[str, object]:
    """Describe the machine. `directory` lies on the disk that was used."""
    cpus = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    return {
        "cpu": cpus[0].partition(":")[2].strip() if cpus else platform.processor(),
        "cores": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": _filesystem(directory),
        "load_at_start": os.getloadavg()[0],
    }


def with_unit(value: float, unit: str) -> str:
    """Format to three digits."""
    return f"{_number(value)} {unit}".rstrip()


def show(figures: Sequence[Figure], described: Mapping[str, object]) -> None:
    table = Table(title="mail-replicator: all nodes on one machine", title_justify="left")
    for heading, justify in COLUMNS.items():
        table.add_column(heading, justify=justify, no_wrap=True)
    for figure in figures:
        floor = "" if figure.floor is None else with_unit(figure.floor, figure.unit)
        table.add_row(figure.name, with_unit(figure.value, figure.unit), floor, figure.floor_is, figure.aim)
    console = Console(width=WIDTH)
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in described.items()))


def write(figures: Mapping[str, Sequence[Figure]], described: Mapping[str, object], directory: Path) -> Path:
    """Write one file per run, named for its time in UTC; figures by scenario."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("%Y-%m-%dT%H%M%SZ.json", time.gmtime())
    content = {
        "machine": described,
        "figures": {name: [asdict(figure) for figure in rows] for name, rows in figures.items()},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _filesystem(directory: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if directory.resolve().is_relative_to(part.mountpoint)]
    kind = max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"
    return kind if kind not in {"ext3", "ext4"} or is_ordered(directory) else f"{kind} without a journal"
