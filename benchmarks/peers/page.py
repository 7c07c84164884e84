"""The section of docs/comparison.md that a run writes: the table, who is ahead where, and the conditions."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.rows import Measured, Row
from benchmarks.peers.table import columns
from benchmarks.report.document import conditions


def section(measured: Measured, versions: Mapping[str, str], described: Mapping[str, object], rounds: int) -> str:
    cells = columns(measured, versions)
    lines = [_line(list(cells)), _line(["---"] * len(cells))]
    lines += [_line([column[number] for column in cells.values()]) for number in range(len(measured.rows))]
    first, *others = measured.pairs
    standings = [_standing(measured, first, other) for other in others]
    return "\n".join([*lines, "", *standings, _conditions(described, rounds)])


def _conditions(described: Mapping[str, object], rounds: int) -> str:
    many = f"{rounds} round{'s' * (rounds > 1)}"
    return (
        f"Medians of {many}, with the least and the greatest value of a round. {conditions(described)} "
        f"During the run, other processes used {described['others_cores']} of the cores."
    )


def _standing(measured: Measured, first: str, other: str) -> str:
    """Say in which figures each of the two is ahead; neither is where the ranges of their rounds overlap."""
    ahead: dict[str | None, list[str]] = {first: [], other: [], None: []}
    for row in measured.rows:
        if measured.ratio(row, first, other) is not None:
            ahead[leader(measured, row, first, other)].append(row.name)
    named = {who: "; ".join(names) or "nothing" for who, names in ahead.items()}
    return (
        f"**{other} is ahead of {first}** in: {named[other]}.\n\n"
        f"**{first} is ahead of {other}** in: {named[first]}.\n\n"
        f"The rounds of {first} and {other} overlap in: {named[None]}.\n"
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
