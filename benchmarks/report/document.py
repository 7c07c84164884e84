"""Write measurements into a page of docs/, by the run that made them.

Each scenario has a section there between two markers, `<!-- measured: NAME -->` and `<!-- end: NAME -->`; the text
between them is replaced, everything else is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from benchmarks.clients.wire import MeasurementError
from benchmarks.report.figure import Figure, with_unit


def refresh(page: str, name: str, figures: Sequence[Figure], described: Mapping[str, object]) -> str:
    """Return the page with one scenario's section replaced. Raises MeasurementError if it has no such section."""
    return replace_section(page, name, _section(figures, described))


def replace_section(page: str, name: str, text: str) -> str:
    """Return the page with this text between the markers. Raises MeasurementError if it has no such section."""
    begin, end = f"<!-- measured: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise MeasurementError(f"the page has no section {begin} ... {end}: add it, with a heading")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _section(figures: Sequence[Figure], described: Mapping[str, object]) -> str:
    rows = ["| figure | measured | floor | aim |", "|---|---|---|---|"]
    for figure in figures:
        floor = "" if figure.floor is None else with_unit(figure.floor, figure.unit)
        floor += f": {figure.floor_is}" if figure.floor_is else ""
        rows.append(f"| {figure.name} | {with_unit(figure.value, figure.unit)} | {floor} | {figure.aim} |")
    return "\n".join([*rows, "", conditions(described)])


def conditions(described: Mapping[str, object]) -> str:
    """Say when and on what machine something was measured."""
    memory_gib = int(str(described["memory_mib"])) / 1024
    scale = "" if described["scale"] == "full" else f", in a {described['scale']} run"
    return (
        f"On {time.strftime('%Y-%m-%d', time.gmtime())}{scale}: {described['cores']} cores of {described['cpu']}, "
        f"{memory_gib:.0f} GiB, Linux {described['kernel']}, {described['filesystem']}, Python {described['python']}; "
        f"the machine's load before was {float(str(described['load_at_start'])):.1f}."
    )
