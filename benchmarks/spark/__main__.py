"""`python -m benchmarks.spark`: run the audits, print the table, write the JSON."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TypeVar

import click

from benchmarks.report.document import refresh
from benchmarks.report.figure import Figure, machine, show, write
from benchmarks.spark.generator import Planted, Recipe, generate
from benchmarks.spark.loop import compare_all
from benchmarks.spark.planting import NODES
from benchmarks.spark.running import Done, run

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "figures.md"
LIMIT_S = 5400
"""Seconds after which a run is taken for hung."""

MILLION = 1_000_000
SIZES = (1.0, 3.0, 10.0)
SMALL = 20
DISK_BYTES = 400
"""Bytes for each message of each node at most: its inventory, and the shuffled data."""
AIMS = {10 * MILLION: "under 360 s"}


@click.command()
@click.option("--millions", "sizes", type=float, multiple=True, help="Messages of each node, in millions.")
@click.option("--skew", default=3.0, help="Millions of messages in one mailbox, among as many in mailboxes of 20.")
@click.option("--loop/--no-loop", default=True, help="The smallest in plain Python, too.")
@click.option("--docs", is_flag=True, help="Write the table into docs/figures.md, too.")
def main(sizes: Sequence[float], *, skew: float, loop: bool, docs: bool) -> None:
    """Audit three nodes of 1, 3 and 10 million messages, each size in a process of its own.

    Needs 12 GB of disk. The files of a run are removed when it ends.
    """
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, _ended)
    signal.alarm(LIMIT_S)
    (ROOT / "var").mkdir(exist_ok=True)
    described = machine(ROOT / "var") | {"scale": "full"}
    figures: list[Figure] = []
    cpu_s: dict[int, float] = {}
    for rows in sorted(round(size * MILLION) for size in sizes or SIZES):
        what = f"{len(NODES)} nodes of {rows:,} messages"
        done, loop_s = _with(Recipe(rows), partial(_run, loop=loop and not cpu_s))
        cpu_s[rows] = done.work.cpu_s
        figures += _audited(what, done, rows, AIMS.get(rows, ""))
        if loop_s is not None:
            figures.append(Figure(f"{what}, in plain Python", loop_s, "s", done.all_s, "by Spark"))
    figures += [
        Figure(
            f"from {few:,} to {many:,} messages, time of processors a message",
            cpu_s[many] / many / (cpu_s[few] / few),
            "times",
            aim="under 1.15",
        )
        for few, many in pairwise(cpu_s)
    ]
    if skew:
        large = round(skew * MILLION)
        done = _with(Recipe(large, large=large, sizes=(SMALL, SMALL)), run)
        figures += _audited(f"one mailbox of {large:,} among {large // SMALL:,} of {SMALL}", done, 2 * large, "")
    show(figures, described)
    click.echo(write({"spark": figures}, described, RESULTS))
    if docs:
        PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), "spark", figures, described), encoding="utf-8")


def _ended(number: int, _frame: FrameType | None) -> None:
    why = f"not done after {LIMIT_S} s" if number == signal.SIGALRM else "ended by SIGTERM"
    sys.exit(f"benchmarks: {why}")


def _run(planted: Planted, scratch: Path, *, loop: bool) -> tuple[Done, float | None]:
    return run(planted, scratch), compare_all(planted) if loop else None


def _with(recipe: Recipe, use: Callable[[Planted, Path], T]) -> T:
    """Generate inventories by the recipe, and remove them after use."""
    need = DISK_BYTES * len(NODES) * (recipe.rows + recipe.large)
    if (free := shutil.disk_usage(ROOT / "var").free) < need:
        sys.exit(f"benchmarks: {free >> 30} GiB are free in {ROOT / 'var'}, and it takes {need >> 30} GiB")
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=ROOT / "var") as directory:
        click.echo(f"{recipe} ...", err=True)
        planted = generate(Path(directory, "inventories"), recipe)
        return use(planted, Path(directory))


def _audited(what: str, done: Done, rows: int, aim: str) -> list[Figure]:
    click.echo(f"  {done}", err=True)
    detail = asdict(done) | {"work": done.work._asdict()}
    work = done.work
    return [
        Figure(f"{what}, in all", done.all_s, "s", aim=aim, detail=detail),
        *(Figure(f"{what}, {name}", seconds, "s") for name, seconds in done.seconds.items()),
        Figure(f"{what}, read", len(NODES) * rows / done.all_s, "rows/s"),
        Figure(f"{what}, time of processors in tasks", work.cpu_s, "s"),
        Figure(f"{what}, memory of the process at most", done.peak_bytes / 2**20, "MiB"),
        Figure(f"{what}, shuffled", work.shuffled_bytes / 2**20, "MiB"),
        Figure(f"{what}, longest of its tasks", work.longest_s, "s", work.median_s, f"median of {work.tasks}"),
        Figure(f"{what}, differences missed or invented", done.missed + done.invented, "", aim="0"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
