"""Run the audit as `replicator diff` does, in a process of its own, and check its results against the planted ones."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark.generator import Planted, Relation
from benchmarks.spark.metrics import Work, peak_bytes, work
from benchmarks.spark.planting import Message
from spark.audit.audit import audit
from spark.job.resources import Resources
from spark.job.session import session
from spark.report.summary import Summary

K = TypeVar("K")
V = TypeVar("V")

MASTER, MEMORY = "local[2]", "4g"
"""Settings of the one process that is driver and executor."""


@dataclass(frozen=True)
class Said:
    """Results of an audit: `seconds` of its steps, and `index`, the number of wrong index rows by node and fault."""

    seconds: Mapping[str, float]
    mailboxes: Mapping[bytes, Relation]
    messages: Mapping[bytes, Message]
    index: Mapping[tuple[str, str], int]

    def held_against(self, planted: Planted) -> tuple[int, int]:
        """Return how many planted differences were missed, and how many were invented; a wrong one counts as both."""
        index = Counter((node, what) for (node, _), what in planted.index.items())
        pairs = (
            _apart(planted.unequal, self.mailboxes),
            _apart(planted.messages, self.messages),
            _apart(index, self.index),
        )
        return sum(missed for missed, _ in pairs), sum(invented for _, invented in pairs)


@dataclass(frozen=True)
class Done:
    """One run; see `Said` for `missed` and `invented`."""

    seconds: Mapping[str, float]
    missed: int
    invented: int
    work: Work
    peak_bytes: int

    @property
    def all_s(self) -> float:
        return sum(self.seconds.values())


@dataclass
class _Watch:
    """Records the time at which each step begins."""

    began: list[tuple[str, float]] = field(default_factory=list)

    def tell(self, what: str) -> None:
        self.began.append((what, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        ends = [at for _, at in self.began[1:]]
        return {what: end - at for (what, at), end in zip(self.began, ends, strict=False)}


def run(planted: Planted, scratch: Path) -> Done:
    """Run the audit. Files are written below `scratch`. The process ends with the call, even if that is interrupted."""
    with multiprocessing.get_context("spawn").Pool(1) as apart:
        return apart.apply(_run, (planted, scratch))


def _run(planted: Planted, scratch: Path) -> Done:
    watch = _Watch()
    watch.tell("starting Spark")
    with session("bench", Resources(MASTER, MEMORY, str(scratch), {})) as spark:
        said = audited(spark, planted.places, scratch / "plan", watch)
        return Done(said.seconds, *said.held_against(planted), work(spark), peak_bytes(spark))


def audited(spark: SparkSession, places: Mapping[str, str], to: Path, watch: _Watch | None = None) -> Said:
    watch = watch or _Watch()
    found = audit(spark, places, str(to), overwrite=False, tell=watch.tell)
    watch.tell("the end")
    mailboxes, messages = (spark.read.parquet(str(to / table)) for table in ("mailboxes", "messages"))
    return Said(
        watch.seconds(),
        {key: Relation(*values) for key, *values in _rows(mailboxes, "mailbox", Relation._fields)},
        {key: Message(*values) for key, *values in _rows(messages, "guid", Message._fields)},
        _index(found),
    )


def _rows(table: DataFrame, key: str, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    rows = table.select(key, *names).collect()
    return [(bytes(row[0]), *(tuple(value) if isinstance(value, list) else value for value in row[1:])) for row in rows]


def _index(found: Summary) -> dict[tuple[str, str], int]:
    return {(node.node, what): count for node in found.nodes for what, count in node.index.items() if count}


def _apart(planted: Mapping[K, V], said: Mapping[K, V]) -> tuple[int, int]:
    return len(planted.items() - said.items()), len(said.items() - planted.items())
