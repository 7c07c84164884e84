"""Measured values of each pair, round by round, and their medians."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """A quantity. Less of it is better, unless `more_is_better`."""

    name: str
    unit: str
    more_is_better: bool = False


Values = Mapping[Row, float]
"""Values that one round has measured of one pair."""


@dataclass
class Measured:
    """Values of all rounds: by row, and by the pair's name."""

    pairs: Sequence[str]
    values: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    others_cores: dict[str, list[float]] = field(default_factory=dict)
    """Cores that work of others used while a pair was measured."""

    def add(self, pair: str, values: Values) -> None:
        for row, value in values.items():
            self.values.setdefault(row, {}).setdefault(pair, []).append(value)

    def add_others(self, pair: str, cores: float) -> None:
        self.others_cores.setdefault(pair, []).append(cores)

    @property
    def rows(self) -> list[Row]:
        return list(self.values)

    def median(self, row: Row, pair: str) -> float | None:
        """Return the median over the rounds, or None if this pair has no value."""
        values = self.values[row].get(pair)
        return statistics.median(values) if values else None

    def spread(self, row: Row, pair: str) -> tuple[float, float]:
        """Return the least and the greatest value."""
        values = self.values[row][pair]
        return min(values), max(values)

    def ratio(self, row: Row, pair: str, other: str) -> float | None:
        """Return the pair's median as a multiple of the other's, or None if one of them has none."""
        one, two = self.median(row, pair), self.median(row, other)
        return one / two if one is not None and two else None

    def best(self, row: Row) -> str:
        """Return the pair with the best median."""
        medians = {pair: median for pair in self.pairs if (median := self.median(row, pair)) is not None}
        return (max if row.more_is_better else min)(medians, key=lambda pair: medians[pair])
