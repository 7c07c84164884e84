"""The table of a run for people: medians, and what ours are of each other's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.peers.rows import Measured, Row
from benchmarks.report.figure import with_unit

WIDTH = 210
"""Characters: the table has this width even if the output is no terminal."""


def show(measured: Measured, versions: Mapping[str, str], described: Mapping[str, object]) -> None:
    table = Table(title="Medians, and ratios of the first to the others", title_justify="left")
    cells = columns(measured, versions)
    for heading in cells:
        table.add_column(heading, justify="left" if heading == "figure" else "right", no_wrap=True)
    for number in range(len(measured.rows)):
        table.add_row(*(column[number] for column in cells.values()))
    console = Console(width=WIDTH)
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in described.items()))


def write(measured: Measured, versions: Mapping[str, str], described: Mapping[str, object], directory: Path) -> Path:
    """Write one file per run, named for its time in UTC: each value of each round."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("peers-%Y-%m-%dT%H%M%SZ.json", time.gmtime())
    rows = [{**row._asdict(), "values": values} for row, values in measured.values.items()]
    content = {"machine": described, "versions": versions, "others_cores": measured.others_cores, "rows": rows}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def columns(measured: Measured, versions: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the table's cells by the heading of their column."""
    first, *others = measured.pairs
    table = {"figure": [row.name for row in measured.rows]}
    for pair in measured.pairs:
        table[f"{pair} {versions[pair]}"] = [_median(measured, row, pair) for row in measured.rows]
    for other in others:
        table[f"{first} / {other}"] = [_ratio(measured, row, first, other) for row in measured.rows]
    table["best"] = [measured.best(row) for row in measured.rows]
    return table


def _median(measured: Measured, row: Row, pair: str) -> str:
    median = measured.median(row, pair)
    if median is None:
        return ""
    least, most = measured.spread(row, pair)
    rounds = f" ({with_unit(least, '')}-{with_unit(most, '')})" if most > least else ""
    return f"{with_unit(median, row.unit)}{rounds}"


def _ratio(measured: Measured, row: Row, pair: str, other: str) -> str:
    ratio = measured.ratio(row, pair, other)
    return "" if ratio is None else f"{ratio:.2f}"
