"""The section of docs/comparison.md that a run writes: the table, who is ahead where, and the conditions."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.rows import Measured, Row
from benchmarks.peers.table import columns
from benchmarks.report.document import conditions

OTHERS_CORES_MAX = 0.3
"""Cores that other work may use. Else the generator and two servers get too little of a machine of two cores."""


def section(measured: Measured, versions: Mapping[str, str], described: Mapping[str, object], rounds: int) -> str:
    cells = columns(measured, versions)
    lines = [_line(list(cells)), _line(["---"] * len(cells))]
    lines += [_line([column[number] for column in cells.values()]) for number in range(len(measured.rows))]
    first, *others = measured.pairs
    standings = [_standing(measured, first, other) for other in others]
    return "\n".join([*lines, "", *standings, _conditions(measured, described, rounds)])


def _conditions(measured: Measured, described: Mapping[str, object], rounds: int) -> str:
    many = f"{rounds} round{'s' * (rounds > 1)}"
    return f"Medians of {many}, with the least and the greatest value. {conditions(described)} {others(measured)}"


def others(measured: Measured) -> str:
    """Say what other work the machine had, and whether that spoils the figures."""
    used = [f"{max(cores):.1f} beside {pair}" for pair, cores in measured.others_cores.items()]
    text = f"At the worst of its rounds, other work used these cores of the machine: {', '.join(used)}."
    if max(max(cores) for cores in measured.others_cores.values()) > OTHERS_CORES_MAX:
        text += " **That is too much for figures to rely on: repeat the run on a machine without other work.**"
    return text


def _standing(measured: Measured, first: str, other: str) -> str:
    """Say in which figures each of the two is ahead; neither is where the ranges of their rounds overlap."""
    ahead: dict[str | None, list[str]] = {first: [], other: [], None: []}
    for row in measured.rows:
        if measured.ratio(row, first, other) is not None:
            ahead[leader(measured, row, first, other)].append(row.name)
    named = {who: "; ".join(names) or "nothing" for who, names in ahead.items()}
    return (
        f"- **{other} is ahead of {first}** in: {named[other]}.\n"
        f"- **{first} is ahead of {other}** in: {named[first]}.\n"
        f"- Rounds of {first} and {other} overlap in: {named[None]}.\n"
    )


def leader(measured: Measured, row: Row, first: str, other: str) -> str | None:
    """Return the one of the two whose worst round is better than the other's best one, or None."""
    (least, most), (other_least, other_most) = measured.spread(row, first), measured.spread(row, other)
    if least > other_most:
        return first if row.more_is_better else other
    if most < other_least:
        return other if row.more_is_better else first
    return None


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
